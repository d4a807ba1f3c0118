"""The store `memory`: a router reads the log once along what it is told, and streams units as the log has them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.config import PipelineConfig, StoreName
from airflow_parallel_apply.pipeline.errors import ConfigurationError, LogError, ParallelApplyError
from airflow_parallel_apply.pipeline.log.mark import mark_of
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.epoch import Branch, Unit
from airflow_parallel_apply.pipeline.model.position import Position
from airflow_parallel_apply.pipeline.partition.open import open_partitioner
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.store.feed import feed_stretch
from airflow_parallel_apply.pipeline.store.memory.feeder import MemoryFeeder
from airflow_parallel_apply.pipeline.store.memory.subject import FEED, HELD, Subject
from airflow_parallel_apply.pipeline.store.open import open_feeder, open_store, store_status
from airflow_parallel_apply.pipeline.store.protocol import FileBranch, StreamBranch, Stretch
from airflow_parallel_apply.pipeline.stream.address import router_address
from airflow_parallel_apply.pipeline.stream.client import StreamClient
from airflow_parallel_apply.router.feeding.feedings import FeedingLimits
from airflow_parallel_apply.router.feeding.stretches import ToldStretches
from tests.support.memory_router import MemoryRouter, memory_router, streamed
from tests.support.routed import until
from tests.support.written_log import Change, append, make_log

CHANNELS = 4
ROUTING = Routing(channels=CHANNELS)
SEGMENTS = 5
SEGMENT = 40
LAST = SEGMENTS * SEGMENT - 1


@pytest.fixture
def log(tmp_path: Path) -> LogReader:
    """Two hundred transactions of two rows, in five segments."""
    url = str(tmp_path / "log")
    make_log(url)
    for number in range(SEGMENTS):
        first = number * SEGMENT
        append(url, first, [[Change("I", one, "a"), Change("U", one, "b")] for one in range(first, first + SEGMENT)])
    return open_reader(url)


@pytest.fixture
def router(tmp_path: Path) -> Iterator[MemoryRouter]:
    with memory_router(tmp_path) as running:
        yield running


def config_of(log: LogReader, router: MemoryRouter | None) -> PipelineConfig:
    endpoint = None if router is None else router.endpoint
    return PipelineConfig(pipeline="p", log_url=str(log.root), store=StoreName.MEMORY, router=endpoint)


def fed(log: LogReader, router: MemoryRouter, *stretches: Stretch) -> MemoryFeeder:
    feeder = open_feeder(config_of(log, router), log, ROUTING)
    assert isinstance(feeder, MemoryFeeder)
    for stretch in stretches:
        feed_stretch(log, ROUTING, feeder, stretch)
    return feeder


def unit(channel: int, after_seqno: int, last_seqno: int, *, routing: Routing | None = None) -> Unit:
    return Unit(
        pipeline="p",
        generation=1,
        kind=Branch(channel),
        channels=CHANNELS,
        token="t",
        after_seqno=after_seqno,
        last_seqno=last_seqno,
        row_count=0,
        routing=routing,
    )


def rows_of(log: LogReader, asked: Unit) -> list[tuple[int, int, str]]:
    """By the log and the partitioner, without any store."""
    partitioner = open_partitioner(asked.routing or ROUTING)
    relations = {relation.relation_id: relation for relation in log.state().relations}
    found = []
    for batch in log.rows(asked.after_seqno, asked.last_seqno):
        channels = partitioner.place(batch, relations).channels
        found += told([batch.filter(pa.array(channels == asked.channel))])
    return sorted(found)


def told(batches: list[pa.RecordBatch]) -> list[tuple[int, int, str]]:
    rows = [row for batch in batches for row in batch.select(["seqno", "fragno", "values"]).to_pylist()]
    return sorted((row["seqno"], row["fragno"], row["values"]) for row in rows)


def positions(*seqnos: int) -> tuple[Position, ...]:
    return tuple(
        Position(channel=channel, seqno=seqno, generation=1, claim="t") for channel, seqno in enumerate(seqnos)
    )


def branch_of(log: LogReader, router: MemoryRouter | None, asked: Unit) -> FileBranch | StreamBranch:
    store = open_store(config_of(log, router), log)
    try:
        return store.branch(asked)
    finally:
        store.close()


@pytest.mark.parametrize("bounds", [(-1, LAST), (-1, 0), (10, 50), (39, 79), (100, LAST)])
def test_a_stream_has_a_units_rows_as_the_log_has_them_however_its_segments_lie(
    log: LogReader, router: MemoryRouter, bounds: tuple[int, int]
) -> None:
    fed(log, router, Stretch(-1, LAST))
    for channel in range(CHANNELS):
        asked = unit(channel, *bounds)
        branch = branch_of(log, router, asked)
        assert isinstance(branch, StreamBranch)
        assert told(streamed(branch)) == rows_of(log, asked)


def test_whoever_asks_again_gets_the_same_rows_also_from_the_middle_of_a_stream(
    log: LogReader, router: MemoryRouter
) -> None:
    fed(log, router, Stretch(-1, LAST))
    asked = unit(1, 20, 120)
    branch = branch_of(log, router, asked)
    assert isinstance(branch, StreamBranch)
    client = StreamClient(router_address(branch.address))
    killed = client.stream(branch.tickets[0])
    next(killed)
    twin = client.stream(branch.tickets[0])
    first = next(twin)
    killed.close()
    assert told([first, *twin]) == told(streamed(branch)) == rows_of(log, asked)
    client.close()


def test_a_ticket_for_what_was_let_go_of_is_answered_from_the_log(log: LogReader, router: MemoryRouter) -> None:
    feeder = fed(log, router, Stretch(-1, LAST))
    asked = unit(2, 10, 60)
    branch = branch_of(log, router, asked)
    assert isinstance(branch, StreamBranch)
    feeder.trim(positions(LAST, LAST, LAST, LAST))
    assert told(streamed(branch)) == rows_of(log, asked)
    assert isinstance(branch_of(log, router, asked), FileBranch)


def test_what_is_trimmed_is_what_its_channel_has_passed(log: LogReader, router: MemoryRouter) -> None:
    feeder = fed(log, router, Stretch(-1, LAST))
    feeder.trim(positions(-1, 79, LAST, 99))
    assert isinstance(branch_of(log, router, unit(0, -1, LAST)), StreamBranch)
    assert isinstance(branch_of(log, router, unit(1, 79, LAST)), StreamBranch)
    assert isinstance(branch_of(log, router, unit(1, 39, LAST)), FileBranch)
    assert isinstance(branch_of(log, router, unit(3, 99, LAST)), StreamBranch)


def test_what_was_not_fed_is_read_from_the_log(log: LogReader, router: MemoryRouter) -> None:
    fed(log, router, Stretch(39, 79), Stretch(100, 150))
    assert isinstance(branch_of(log, router, unit(0, 39, 79)), StreamBranch)
    assert isinstance(branch_of(log, router, unit(0, 120, 150)), StreamBranch)
    for bounds in ((-1, 39), (38, 79), (79, 100), (60, 120), (120, 151)):
        assert isinstance(branch_of(log, router, unit(0, *bounds)), FileBranch)
    other = Routing(channels=CHANNELS, partitioner="round_robin")
    assert isinstance(branch_of(log, router, unit(0, 39, 79, routing=other)), FileBranch)


def test_what_is_in_doubt_is_read_from_the_log_and_the_rest_is_not(log: LogReader, router: MemoryRouter) -> None:
    fed(log, router, Stretch(-1, LAST))
    store = open_store(config_of(log, router), log)
    store.doubt(unit(0, 39, 79))
    assert isinstance(store.branch(unit(0, 39, 79)), FileBranch)
    assert isinstance(store.branch(unit(0, 60, 100)), FileBranch)
    assert isinstance(store.branch(unit(0, 79, 100)), StreamBranch)
    assert isinstance(store.branch(unit(1, 39, 79)), StreamBranch)
    for _ in range(2):
        store.doubt(unit(1, 39, 79))
    assert isinstance(store.branch(unit(2, 39, 79)), FileBranch), "its executors may not reach the router"
    store.close()


def test_a_router_that_is_gone_is_told_once_and_the_log_serves(
    log: LogReader, router: MemoryRouter, caplog: pytest.LogCaptureFixture
) -> None:
    feeder = fed(log, router, Stretch(-1, LAST))
    store = open_store(config_of(log, router), log)
    assert isinstance(store.branch(unit(0, -1, LAST)), StreamBranch)
    router.stop()
    with caplog.at_level(logging.WARNING):
        for channel in range(CHANNELS):
            assert isinstance(store.branch(unit(channel, -1, LAST)), FileBranch)
    assert sum("the log serves its channels" in one.message for one in caplog.records) == 1
    with pytest.raises(LogError, match="cannot be reached"):
        feeder.trim(positions(0, 0, 0, 0))
    found = store_status(log, "p", ROUTING, router.endpoint)
    assert found is not None
    assert "the log serves its channels, since" in str(found)


def test_a_host_without_a_router_reads_the_log(log: LogReader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARALLEL_APPLY_RUNTIME_DIR", str(tmp_path / "runtime"))
    assert isinstance(branch_of(log, None, unit(0, -1, LAST)), FileBranch)
    assert store_status(log, "p", ROUTING) is None


def test_a_log_that_was_restored_and_goes_on_with_other_transactions_is_not_served_from_before(
    log: LogReader, router: MemoryRouter, tmp_path: Path
) -> None:
    fed(log, router, Stretch(-1, LAST))
    before = branch_of(log, router, unit(0, -1, LAST))
    assert isinstance(before, StreamBranch)
    streamed(before)
    asked = {"channel": 0, "after_seqno": -1, "last_seqno": LAST}
    mark = mark_of(log, LAST)
    assert mark is not None
    subject = Subject.of_pipeline(log, "p", ROUTING).to_json()
    client = StreamClient(router_address(router.endpoint.url))
    same = {**subject, **asked, "end_offset": mark.end_offset, "commit_time": mark.commit_time}
    assert client.call(HELD, same)["held"]
    assert not client.call(HELD, {**same, "commit_time": mark.commit_time + 1})["held"]
    assert not client.call(HELD, same)["held"], "nothing of that reading counts any more"
    fed(log, router, Stretch(-1, LAST))
    assert client.call(HELD, same)["held"], "it was read anew"
    client.close()


def test_statistics_are_told_by_channel(log: LogReader, router: MemoryRouter) -> None:
    feeder = fed(log, router, Stretch(-1, LAST))
    for channel in range(CHANNELS):
        branch = branch_of(log, router, unit(channel, -1, LAST))
        assert isinstance(branch, StreamBranch)
        streamed(branch)
    status = feeder.status()
    assert [one.row_count for one in status.channels] == [
        len(rows_of(log, unit(channel, -1, LAST))) for channel in range(CHANNELS)
    ]
    assert status.held_seqno == LAST
    assert all(one.most_memory_bytes > 0 for one in status.channels)
    assert "400 rows up to seqno 199 at grpc://127.0.0.1:" in str(status)
    assert router.held.stats()["rows_total"] == 400
    ((held, channels),) = router.held.channels().items()
    assert (held.pipeline, held.routing) == ("p", ROUTING.digest)
    assert [one.row_count for one in channels] == [one.row_count for one in status.channels]


def test_rows_that_spill_come_back_and_no_channel_waits_for_another(log: LogReader, tmp_path: Path) -> None:
    limits = FeedingLimits(memory_bytes=4096, disk_bytes=2**24)
    with memory_router(tmp_path, limits) as router:
        feeder = fed(log, router, Stretch(-1, LAST))
        # One after the other: all rows of the others wait meanwhile.
        for channel in range(CHANNELS):
            asked = unit(channel, -1, LAST)
            branch = branch_of(log, router, asked)
            assert isinstance(branch, StreamBranch)
            assert told(streamed(branch)) == rows_of(log, asked)
        assert any(one.most_file_bytes for one in feeder.status().channels)


def test_a_feeding_that_failed_is_told_and_begun_anew_by_the_next_feeder(log: LogReader, tmp_path: Path) -> None:
    limits = FeedingLimits(memory_bytes=4096, disk_bytes=1)
    with memory_router(tmp_path, limits) as router:
        feeder = fed(log, router, Stretch(-1, LAST))
        asked = unit(0, -1, LAST)
        branch = branch_of(log, router, asked)
        if isinstance(branch, StreamBranch):
            # Whoever had begun to read when the budget was spent gets the error; whoever begins later, the log's rows.
            with suppress(ParallelApplyError):
                assert told(streamed(branch)) == rows_of(log, asked)
            assert told(streamed(branch)) == rows_of(log, asked)
        until(lambda: bool(feeder.status().failure), "the feeding has not failed")
        assert isinstance(branch_of(log, router, asked), FileBranch)


def test_a_router_without_memory_for_rows_says_so_and_its_log_serves(log: LogReader, tmp_path: Path) -> None:
    with memory_router(tmp_path, FeedingLimits(memory_bytes=0)) as router:
        feeder = fed(log, router)
        with pytest.raises(LogError, match=r"this router holds no rows.*--store-memory-mb"):
            feeder.feed(Stretch(-1, LAST), lambda: iter(()))
        assert isinstance(branch_of(log, router, unit(0, -1, LAST)), FileBranch)


def test_tables_that_were_copied_anew_begin_a_feeding_anew(log: LogReader, router: MemoryRouter) -> None:
    fed(log, router, Stretch(-1, LAST))
    client = StreamClient(router_address(router.endpoint.url))
    subject = replace(Subject.of_pipeline(log, "p", ROUTING), recopies=("r",))
    client.call(FEED, {**subject.to_json(), "stretches": []})
    assert isinstance(branch_of(log, router, unit(0, -1, LAST)), FileBranch)
    with pytest.raises(ConfigurationError, match="not a call of this version"):
        client.call(FEED, {"log_id": "1"})
    with pytest.raises(ConfigurationError, match="serves no log"):
        client.call(FEED, {**replace(subject, log_id="another").to_json(), "stretches": []})
    client.close()


def test_stretches_are_read_once_and_in_order() -> None:
    stretches = ToldStretches()
    for one in (Stretch(-1, 10), Stretch(-1, 10), Stretch(5, 20), Stretch(30, 40)):
        stretches.tell(one)
    assert stretches.contain(-1, 20)
    assert stretches.contain(3, 12)
    assert not stretches.contain(15, 35)
    found = iter(stretches)
    assert [next(found) for _ in range(3)] == [Stretch(-1, 10), Stretch(10, 20), Stretch(30, 40)]
    stretches.close()
    assert list(found) == []
