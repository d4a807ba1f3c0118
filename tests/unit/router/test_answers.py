"""Tickets answered from the log: the same rows as the log's own reader gives, whatever the routing."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.errors import ConfigurationError, LogError, Unavailable
from airflow_parallel_apply.pipeline.log import open_reader
from airflow_parallel_apply.pipeline.log.schema import ROWS, TRANSACTIONS
from airflow_parallel_apply.pipeline.log.writing import open_writer
from airflow_parallel_apply.pipeline.model.change import LAST_SEQNO
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.stream.ticket import Ticket, TicketKind
from airflow_parallel_apply.router.service.answers import from_log, schema_of
from airflow_parallel_apply.router.service.limits import Room, RouterLimits
from airflow_parallel_apply.router.service.logs import LogPaths, ServedLogs
from tests.support.written_log import Change, append, make_log

NO_WAIT = timedelta(0)
ROUTINGS = {
    "key": Routing(channels=7),
    "64 channels": Routing(channels=64),
    "shard": Routing(channels=4, partitioner="shard", shard_by=(("*", "id % 3"),)),
    "colocated": Routing(channels=3, colocation=(("public.t",),)),
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Five segments of 20 transactions each, up to 9 rows in one."""
    url = str(tmp_path_factory.mktemp("served") / "log")
    make_log(url)
    chosen = random.Random(7)
    for part in range(5):
        transactions = [
            [Change("U", chosen.randrange(500), "v" * chosen.randrange(30)) for _ in range(chosen.randrange(1, 10))]
            for _ in range(20)
        ]
        append(url, part * 20, transactions)
    return url


def room() -> Room:
    return Room(2**30, "memory", "wait")


def answered(url: str, *, batch_bytes: int = 2**20, **wanted: Any) -> pa.Table:
    ticket = Ticket(log="log", **{"after_seqno": -1, "last_seqno": LAST_SEQNO, **wanted})
    memory = room()
    batches = list(from_log(open_reader(url), ticket, memory, RouterLimits(batch_bytes=batch_bytes)))
    assert memory.taken == 0
    assert all(batch.num_rows for batch in batches)
    return pa.Table.from_batches(batches, schema=schema_of(ticket))


def identities(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(table.column("seqno").to_pylist(), table.column("fragno").to_pylist(), strict=True))


@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS.keys())
def test_the_channels_of_a_routing_share_the_rows_out(url: str, routing: Routing) -> None:
    shares = [answered(url, routing=routing, channel=channel) for channel in range(routing.channels)]
    found = sorted(identity for share in shares for identity in identities(share))
    assert found == identities(answered(url, in_order=True))
    keys = [set(share.column("key").to_pylist()) for share in shares]
    assert sum(map(len, keys)) == len(set().union(*keys))


def test_an_answer_has_the_rows_and_columns_that_the_log_has(url: str) -> None:
    expected = pa.Table.from_batches(open_reader(url).rows(30, 77, in_order=True), schema=ROWS)
    assert answered(url, after_seqno=30, last_seqno=77, in_order=True).equals(expected)
    columns = ("key", "seqno")
    assert answered(url, after_seqno=30, last_seqno=77, in_order=True, columns=columns) == expected.select(columns)
    transactions = answered(url, after_seqno=30, last_seqno=77, kind=TicketKind.TRANSACTIONS)
    assert transactions.equals(open_reader(url).transactions(30, 77))
    assert transactions.schema == TRANSACTIONS
    one = answered(url, after_seqno=40, last_seqno=41, after_fragno=0, in_order=True)
    assert identities(one) == [pair for pair in identities(expected) if pair[0] == 41 and pair[1] > 0]


def test_bucket_ranges_divide_a_channel(url: str) -> None:
    routing = Routing(channels=4, partitioner="shard", shard_by=(("*", "id % 3"),))
    whole = answered(url, routing=routing, channel=1)
    parts = [answered(url, routing=routing, channel=1, buckets=each) for each in ((0, 300), (301, 700), (701, 1023))]
    assert sorted(identity for part in parts for identity in identities(part)) == sorted(identities(whole))
    assert all(part.num_rows for part in parts)


def test_batches_are_about_as_large_as_asked_for(url: str) -> None:
    def sizes(**wanted: Any) -> Iterator[int]:
        ticket = Ticket(log="log", after_seqno=-1, last_seqno=99, **wanted)
        for batch in from_log(open_reader(url), ticket, room(), RouterLimits(batch_bytes=4_000)):
            yield batch.nbytes

    assert 4_000 < max(sizes(in_order=True)) < 8_000
    assert max(sizes(routing=Routing(channels=64), channel=3)) < 8_000


def test_what_was_purged_is_an_error_and_what_is_not_there_yet_is_nothing(tmp_path: Path) -> None:
    url = str(tmp_path / "log")
    make_log(url)
    for part in range(3):
        append(url, part * 2, [[Change("I", part, "v")], [Change("D", part)]])
    open_writer(url).purge(1)
    for kind in TicketKind:
        with pytest.raises(LogError, match="purged"):
            answered(url, after_seqno=0, last_seqno=1, kind=kind)
        with pytest.raises(LogError, match="purged"):
            answered(url, kind=kind)
    assert answered(url, after_seqno=1).num_rows == 4
    assert answered(url, after_seqno=5, last_seqno=50).num_rows == 0


def test_a_column_that_no_log_has_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no column secret"):
        schema_of(Ticket(log="log", after_seqno=-1, last_seqno=0, columns=("seqno", "secret")))


def test_a_stream_that_finds_no_memory_is_sent_away_and_what_is_read_gives_it_back(url: str) -> None:
    memory, limits = Room(100, "its streams hold 0 MB", "fewer lanes"), RouterLimits(max_wait=NO_WAIT)
    ticket = Ticket(log="log", after_seqno=-1, last_seqno=99)
    first = from_log(open_reader(url), ticket, memory, limits)
    next(first)
    with pytest.raises(Unavailable, match=r"no room: its streams hold 0 MB.*fewer lanes"):
        next(from_log(open_reader(url), ticket, memory, limits))
    first.close()
    assert next(from_log(open_reader(url), ticket, memory, limits)).num_rows


def test_waiters_for_room_are_released_when_it_closes() -> None:
    closed = room()
    with closed.take(2**30, NO_WAIT):
        assert not closed.wait_empty(NO_WAIT)
        closed.close()
        with pytest.raises(Unavailable, match="stopping"), closed.take(1, timedelta(hours=1)):
            raise AssertionError
    assert closed.wait_empty(NO_WAIT)


def test_only_logs_that_were_named_or_lie_in_the_directory_are_served(url: str, tmp_path: Path) -> None:
    within = tmp_path / "logs"
    (within / "empty").mkdir(parents=True)
    (within / "leading_out").symlink_to(Path(url))
    make_log(str(within / "orders"))
    served = ServedLogs(LogPaths(named={"named": Path(url)}, within=within))
    assert served.names() == ("named", "orders")
    assert served.reader("named").state().last_seqno == 99
    for name in ("leading_out", "empty", "..", ".", "", "orders/../orders", "/etc", "orders/segments", "log"):
        with pytest.raises(ConfigurationError, match="serves no log"):
            served.reader(name)


def test_another_log_under_the_name_is_told_from_the_pipelines_own(url: str) -> None:
    served = ServedLogs(LogPaths(named={"log": Path(url)}))
    assert served.reader("log", "log") is served.reader("log")
    with pytest.raises(LogError, match="'log' is log log, and log other is asked for"):
        served.reader("log", "other")


@pytest.mark.parametrize("wrong", [{}, {"named": {"a/b": Path("/x")}}, {"named": {"..": Path("/x")}}])
def test_paths_that_serve_nothing_or_have_no_name_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="log"):
        LogPaths(**wrong)


def test_copies_of_a_log_are_refused_where_nothing_tells_which_is_asked_for(url: str, tmp_path: Path) -> None:
    shutil.copytree(url, tmp_path / "a_copy")
    served = ServedLogs(LogPaths(within=tmp_path, named={"log": Path(url)}))
    log_id = open_reader(url).identity.log_id
    assert served.find(log_id, url) == "log"
    with pytest.raises(ConfigurationError, match=r"several directories of the log .*: a_copy, log"):
        served.find(log_id, "/elsewhere/log")
    shutil.rmtree(tmp_path / "a_copy")
    assert served.find(log_id, "/elsewhere/log") == "log"
