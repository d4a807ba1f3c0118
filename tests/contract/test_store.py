"""Promises of every store; `StoreName` admits another."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_parallel_apply.pipeline.config import PipelineConfig, RouterEndpoint, StoreName
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.epoch import Branch, Serial, Unit, UnitKind
from airflow_parallel_apply.pipeline.model.position import Position
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.store.channel_log.feeder import LEFT_SECONDS, ChannelLogFeeder
from airflow_parallel_apply.pipeline.store.feed import feed_stretch
from airflow_parallel_apply.pipeline.store.mark import mark_of
from airflow_parallel_apply.pipeline.store.open import open_feeder, open_store
from airflow_parallel_apply.pipeline.store.protocol import Feeder, FileBranch, Store, StoreBranch, StreamBranch, Stretch
from tests.support.memory_router import MemoryRouter, memory_router, streamed
from tests.support.written_log import Change, append, make_log

LAST = 49
CHANNELS = 4
ROUTING = Routing(channels=CHANNELS)
WHOLE = Stretch(-1, LAST)
MOMENT = datetime(2026, 2, 1, tzinfo=UTC)
ROUTERS: list[RouterEndpoint] = []
"""That of the store `memory`, in a test of it."""


@pytest.fixture
def log(tmp_path: Path) -> LogReader:
    url = str(tmp_path / "log")
    make_log(url)
    append(url, 0, [[Change("I", number, "a")] for number in range(LAST + 1)])
    return open_reader(url)


@pytest.fixture(params=list(StoreName))
def name(request: pytest.FixtureRequest) -> StoreName:
    found: StoreName = request.param
    return found


@pytest.fixture(autouse=True)
def router(name: StoreName, tmp_path: Path) -> Iterator[MemoryRouter | None]:
    if name is not StoreName.MEMORY:
        yield None
        return
    with memory_router(tmp_path) as running:
        ROUTERS[:] = [running.endpoint]
        yield running
    ROUTERS.clear()


def unit(kind: UnitKind, after_seqno: int, last_seqno: int) -> Unit:
    return Unit(
        pipeline="p",
        generation=1,
        kind=kind,
        channels=CHANNELS,
        token="t",
        after_seqno=after_seqno,
        last_seqno=last_seqno,
        row_count=0,
    )


def config_of(name: StoreName, log: LogReader) -> PipelineConfig:
    return PipelineConfig(pipeline="p", log_url=str(log.root), store=name, router=next(iter(ROUTERS), None))


def store_of(name: StoreName, log: LogReader) -> Store:
    return open_store(config_of(name, log), log)


def feeder_of(name: StoreName, log: LogReader) -> Feeder | None:
    return open_feeder(config_of(name, log), log, ROUTING)


def feed(name: StoreName, log: LogReader, *stretches: Stretch) -> Feeder | None:
    feeder = feeder_of(name, log)
    if feeder is not None:
        for stretch in stretches:
            feed_stretch(log, ROUTING, feeder, stretch)
    return feeder


def nothing(name: StoreName, log: LogReader) -> None:
    """Nobody has fed it."""


def fed(name: StoreName, log: LogReader) -> None:
    feed(name, log, WHOLE)


def fed_in_pieces(name: StoreName, log: LogReader) -> None:
    feed(name, log, Stretch(-1, 14), Stretch(14, 15), Stretch(15, LAST))


def fed_in_part(name: StoreName, log: LogReader) -> None:
    feed(name, log, Stretch(-1, 14), Stretch(20, LAST))


def fed_twice(name: StoreName, log: LogReader) -> None:
    for _ in range(2):
        feed(name, log, WHOLE)


def fed_with_an_overlap(name: StoreName, log: LogReader) -> None:
    feed(name, log, Stretch(-1, 20), Stretch(12, LAST))


def fed_by_one_that_died(name: StoreName, log: LogReader) -> None:
    feeder = feeder_of(name, log)
    if isinstance(feeder, ChannelLogFeeder):
        feeder._buffer_bytes = 1  # type: ignore[attr-defined]
        feeder.finish = lambda stretch, mark: False  # type: ignore[method-assign]
        feed_stretch(log, ROUTING, feeder, WHOLE)


def trimmed(name: StoreName, log: LogReader) -> None:
    feeder = feed(name, log, Stretch(-1, 14), Stretch(14, LAST))
    if feeder is not None:
        feeder.trim(positions(14, 14, LAST, 14))


def lost(name: StoreName, log: LogReader) -> None:
    feed(name, log, WHOLE)
    for path in channel_files(log):
        path.unlink()


def torn(name: StoreName, log: LogReader) -> None:
    feed(name, log, WHOLE)
    for path in channel_files(log):
        path.write_bytes(path.read_bytes()[:-9] + b"\0" * 9)


def doubted(name: StoreName, log: LogReader) -> None:
    feed(name, log, WHOLE)
    asked = unit(Branch(0), 9, 29)
    store_of(name, log).doubt(asked)


def index_torn(name: StoreName, log: LogReader) -> None:
    feed(name, log, WHOLE)
    for path in log.root.glob("channels/*/held/*.json"):
        path.write_bytes(b"{}")


WAYS: tuple[Callable[[StoreName, LogReader], None], ...] = (
    nothing, fed, fed_in_pieces, fed_in_part, fed_twice, fed_with_an_overlap, fed_by_one_that_died,
    trimmed, lost, torn, doubted, index_torn,
)  # fmt: skip


def positions(*seqnos: int) -> tuple[Position, ...]:
    return tuple(
        Position(channel=channel, seqno=seqno, generation=1, claim="t") for channel, seqno in enumerate(seqnos)
    )


def channel_files(log: LogReader) -> list[Path]:
    return sorted(log.root.glob("channels/*/*/*.parquet"))


def counted(asked: Unit) -> Unit:
    """With the rows that the plan would count: each transaction is one row, in the channel of its key."""
    return replace(asked, row_count=len(seqnos_of(asked)))


def seqnos_of(asked: Unit) -> list[int]:
    return [seqno for seqno in range(asked.after_seqno + 1, asked.last_seqno + 1) if CHANNEL_OF[seqno] == asked.channel]


CHANNEL_OF: dict[int, int] = {}


@pytest.fixture(autouse=True)
def _channels(log: LogReader) -> None:
    for batch in log.rows(-1, LAST, columns=["seqno", "bucket"]):
        for seqno, bucket in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            CHANNEL_OF[seqno] = bucket * CHANNELS // 1024


def read(branch: StoreBranch) -> list[int]:
    assert branch.condition is not None
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE log (seqno, bucket)")
    match branch:
        case FileBranch():
            rows = pq.read_table(list(branch.files), columns=["seqno", "bucket"]).to_pylist()
        case StreamBranch():
            rows = [row for batch in streamed(branch) for row in batch.select(["seqno", "bucket"]).to_pylist()]
    database.executemany("INSERT INTO log VALUES (:seqno, :bucket)", rows)
    bounds = [branch.after_seqno, branch.last_seqno]
    chosen = f"SELECT seqno FROM log WHERE seqno > ? AND seqno <= ? AND ({branch.condition})"
    return sorted(seqno for (seqno,) in database.execute(chosen, bounds))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_channels_branches_hold_each_row_once_whatever_became_of_the_store(
    name: StoreName, log: LogReader, way: Callable[[StoreName, LogReader], None]
) -> None:
    way(name, log)
    for first, last in ((9, 29), (14, LAST), (14, 20), (-1, LAST), (29, 30)):
        for channel in range(CHANNELS):
            asked = counted(unit(Branch(channel), first, last))
            if asked.row_count:
                store = store_of(name, log)
                assert read(store.branch(asked)) == read(store.branch(asked)) == seqnos_of(asked)


def test_rows_of_a_history_that_a_restored_log_has_lost_are_not_served(
    name: StoreName, log: LogReader, tmp_path: Path
) -> None:
    """Source and log of an earlier moment: as many transactions follow as were lost, none of them as it was."""
    root, last = log.root, LAST + 10
    assert root is not None
    shutil.copytree(root, tmp_path / "backup" / "kept")
    append(str(root), LAST + 1, inserts("lost"), times=[MOMENT] * 10)
    newer = open_reader(str(root))
    feed(name, newer, WHOLE, Stretch(LAST, last))
    assert served(name, newer, last) == {"lost"}
    restore(root, tmp_path / "backup" / "kept")
    append(str(root), LAST + 1, inserts("new"), times=[MOMENT + timedelta(hours=1)] * 10)
    restored = open_reader(str(root))
    assert served(name, restored, last) == {"new"}
    feeder = feeder_of(name, restored)
    lacking = () if feeder is None else feeder.lacks(Stretch(-1, last))
    feed(name, restored, *lacking)
    assert served(name, restored, last) == {"new"}
    if isinstance(feeder, ChannelLogFeeder):
        assert lacking == (Stretch(LAST, last),), "what both histories have is held"
        assert feeder.lacks(Stretch(-1, last)) == ()
        asked = branches_of(name, restored, last)
        assert not {file for branch in asked for file in branch.files} & set(restored.row_files(-1, last)), "fed anew"


def inserts(value: str) -> list[list[Change]]:
    return [[Change("I", number, value)] for number in range(LAST + 1, LAST + 11)]


def restore(root: Path, kept: Path) -> None:
    """Bring back a log over a newer one, as a tool does that passes over what needs no backup."""
    for path in root.iterdir():
        if path.name != "channels":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(kept, root, dirs_exist_ok=True)


def served(name: StoreName, log: LogReader, last: int) -> set[str]:
    return {value for branch in branches_of(name, log, last) for value in values_of(branch, LAST)}


def branches_of(name: StoreName, log: LogReader, last: int) -> list[StoreBranch]:
    """Of all channels with rows behind `LAST`."""
    rows = pa.Table.from_batches(log.rows(LAST, last, columns=["bucket"])).column("bucket").to_pylist()
    counts = Counter(bucket * CHANNELS // 1024 for bucket in rows)
    store = store_of(name, log)
    return [
        store.branch(replace(unit(Branch(channel), LAST, last), row_count=count)) for channel, count in counts.items()
    ]


def values_of(branch: StoreBranch, after_seqno: int) -> list[str]:
    match branch:
        case FileBranch():
            rows = pq.read_table(list(branch.files), columns=["seqno", "values"])
        case StreamBranch():
            rows = pa.Table.from_batches(streamed(branch)).select(["seqno", "values"])
    return [row["values"].split("\t")[1] for row in rows.to_pylist() if row["seqno"] > after_seqno]


def test_a_channel_with_more_rows_than_others_is_divided_in_even_ranges_of_its_own(
    name: StoreName, log: LogReader
) -> None:
    asked = replace(unit(Branch(0), -1, LAST), row_count=40)
    assert store_of(name, log).branch(asked).ranges == ()
    found = store_of(name, log).branch(asked, parts=4).ranges
    assert len(found) == 3, "40 of 50 rows in one of four channels are three channels' share"
    assert all(last <= 255 for _, last in found[:-1])
    even = replace(asked, row_count=13)
    assert store_of(name, log).branch(even, parts=4).ranges == ()


def test_a_serial_unit_takes_every_channels_rows(name: StoreName, log: LogReader) -> None:
    feed(name, log, WHOLE)
    asked = unit(Serial(), 9, 10)
    assert store_of(name, log).branch(asked).condition is None


def test_a_store_that_holds_files_serves_them_and_what_it_lacks_is_told(name: StoreName, log: LogReader) -> None:
    feeder = feed(name, log, Stretch(9, 19))
    if not isinstance(feeder, ChannelLogFeeder):
        pytest.skip("it holds no files")
    assert feeder.lacks(WHOLE) == (Stretch(-1, 9), Stretch(19, LAST))
    asked = counted(unit(Branch(1), 9, 19))
    served = store_of(name, log).branch(asked)
    assert not set(served.files) & set(log.row_files(-1, LAST))
    assert sum(one.row_count for one in feeder.status().channels) == 10
    beyond = counted(unit(Branch(1), 9, 20))
    assert set(store_of(name, log).branch(beyond).files) == set(log.row_files(-1, LAST))


def test_what_is_trimmed_is_what_its_channel_has_passed_and_nothing_else(name: StoreName, log: LogReader) -> None:
    feeder = feed(name, log, Stretch(-1, 14), Stretch(14, LAST))
    if not isinstance(feeder, ChannelLogFeeder):
        pytest.skip("it holds no files")
    before = [one.row_count for one in feeder.status().channels]
    assert feeder.trim(positions(13, 14, LAST, LAST)) == 5
    after = [one.row_count for one in feeder.status().channels]
    assert after[0] == before[0]
    assert 0 < after[1] < before[1]
    assert after[2:] == [0, 0]
    assert feeder.lacks(WHOLE) == (), "what a channel still needs is held"
    assert feeder.trim(positions(LAST, LAST, LAST, LAST)) == 3
    assert feeder.lacks(WHOLE) == (WHOLE,)
    assert channel_files(log) == []


def test_a_large_put_goes_to_disk_and_no_reader_sees_it_before_it_is_finished(name: StoreName, log: LogReader) -> None:
    feeder = feeder_of(name, log)
    if not isinstance(feeder, ChannelLogFeeder):
        pytest.skip("it holds no files")
    feeder._buffer_bytes = 1
    for batch in log.rows(-1, LAST):
        for number in range(batch.num_rows):
            row = batch.slice(number, 1)
            feeder.put(WHOLE, int(row.column("bucket")[0].as_py() * CHANNELS // 1024), [row])
    assert len(channel_files(log)) == CHANNELS
    assert feeder.lacks(WHOLE) == (WHOLE,)
    mark = mark_of(log, LAST)
    assert mark is not None
    assert feeder.finish(WHOLE, mark)
    assert sum(one.row_count for one in feeder.status().channels) == LAST + 1
    asked = counted(unit(Branch(2), -1, LAST))
    assert read(store_of(name, log).branch(asked)) == seqnos_of(asked)


def test_of_two_feeders_one_holds_a_stretch_and_the_others_files_go(name: StoreName, log: LogReader) -> None:
    first, second = (feeder_of(name, log) for _ in range(2))
    if not isinstance(first, ChannelLogFeeder) or not isinstance(second, ChannelLogFeeder):
        pytest.skip("it holds no files")
    feed_stretch(log, ROUTING, first, WHOLE)
    files = channel_files(log)
    feed_stretch(log, ROUTING, second, WHOLE)
    assert channel_files(log) == files


def test_what_a_crash_left_is_swept_later(name: StoreName, log: LogReader) -> None:
    fed_by_one_that_died(name, log)
    feeder = feeder_of(name, log)
    if not isinstance(feeder, ChannelLogFeeder):
        pytest.skip("it holds no files")
    feed_stretch(log, ROUTING, feeder, WHOLE)
    assert len(channel_files(log)) == 2 * CHANNELS
    feeder.trim(positions(-1, -1, -1, -1))
    assert len(channel_files(log)) == 2 * CHANNELS, "it may be another's who is at work"
    feeder._clock = lambda: time.time() + 2 * LEFT_SECONDS
    feeder.trim(positions(-1, -1, -1, -1))
    assert len(channel_files(log)) == CHANNELS
