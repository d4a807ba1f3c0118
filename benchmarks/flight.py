"""Measures a router that streams a log over Flight to 2, 4, 8 and 64 channels, and Spark's price of its data source.

One TPC-B-like log, a router in a process of its own, the clients in threads of this one. Megabytes are those of the
Arrow batches that clients receive. The limit beside it is the same log read and split in this process, without Flight.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic, process_time
from typing import Any, Final

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.change import LAST_SEQNO
from airflow_parallel_apply.pipeline.partition.open import open_partitioner
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.store.feed import by_channel
from airflow_parallel_apply.pipeline.stream.address import router_address
from airflow_parallel_apply.pipeline.stream.client import StreamClient
from airflow_parallel_apply.pipeline.stream.ticket import Ticket
from airflow_parallel_apply.spark.schemas import LOG_SCHEMA, RESULT_SCHEMA
from airflow_parallel_apply.spark.server import connect_server
from airflow_parallel_apply.spark.session import close_session, open_session
from airflow_parallel_apply.spark.stream_source import pull, stream_rows
from benchmarks.processors import seconds_of
from benchmarks.stores import SHARD_BY
from tests.support.routers import RouterCommand
from tests.support.tpcb_log import make_tpcb_log

CHANNELS: Final = (2, 4, 8, 64)
_SHARDED: Final = 8
_NAME: Final = "bench"
_PARTS: Final = 2
"""Tasks of the Spark jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLine:
    """One way of streaming the whole log. `router_seconds`: of the router's processor."""

    what: str
    size_bytes: int
    seconds: float
    router_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightLines:
    """All that was measured. `limit_seconds`: of reading and splitting in one process, by channels. `jobs`: seconds of
    the Spark job by how it gets its rows.
    """

    rows: int
    streams: tuple[StreamLine, ...]
    limit_seconds: dict[int, float]
    jobs: dict[str, float]


def measure_flight(directory: Path, transactions: int, *, repeats: int, tell: Callable[[str], None]) -> FlightLines:
    """Medians of `repeats`, by turns."""
    url = str(directory / "logs" / _NAME)
    make_tpcb_log(url, transactions, scale=100)
    rows = sum(segment.row_count for segment in open_reader(url).state().segments)
    with _router(directory / "logs") as router:
        ways = {"all rows, one stream": [_ticket()]}
        for channels in CHANNELS:
            ways[f"{channels} channels by key"] = _tickets(Routing(channels=channels))
        # By shard each channel reads all: what the store memory is for.
        routing = Routing(channels=_SHARDED, partitioner="shard", shard_by=SHARD_BY)
        ways[f"{_SHARDED} channels by shard"] = _tickets(routing)
        found: dict[str, list[StreamLine]] = {}
        limits: dict[int, list[float]] = {}
        for number in range(repeats):
            tell(f"streams, {number + 1} of {repeats}")
            for what, tickets in ways.items():
                found.setdefault(what, []).append(_stream(router, what, tickets))
            for channels in CHANNELS:
                limits.setdefault(channels, []).append(_split(url, channels))
        jobs = _jobs(router.url, rows, repeats, tell)
    return FlightLines(
        rows=rows,
        streams=tuple(sorted(lines, key=lambda line: line.seconds)[len(lines) // 2] for lines in found.values()),
        limit_seconds={channels: median(seconds) for channels, seconds in limits.items()},
        jobs={what: median(seconds) for what, seconds in jobs.items()},
    )


def print_flight(console: Console, found: FlightLines) -> None:
    """Tables, and the ratio of the data source to pulling."""
    table = Table(title=f"a log of {found.rows:,} rows over Flight", title_justify="left", box=None)
    for name in ("streams", "MB", "seconds", "MB/s", "rows/s", "router's cpu s", "MB/cpu s"):
        table.add_column(name, justify="left" if name == "streams" else "right")
    for line in found.streams:
        size = line.size_bytes / 2**20
        table.add_row(
            line.what,
            f"{size:,.0f}",
            f"{line.seconds:.2f}",
            f"{size / line.seconds:,.0f}",
            f"{found.rows / line.seconds:,.0f}",
            f"{line.router_seconds:.2f}",
            f"{size / max(line.router_seconds, 0.01):,.0f}",
        )
    console.print(table)
    for channels, seconds in found.limit_seconds.items():
        console.print(f"read and split for {channels} channels without Flight: {seconds:.2f} cpu s", highlight=False)
    for what, seconds in found.jobs.items():
        console.print(f"Spark, {what}: {seconds:.2f} s", highlight=False)
    source, pulled = found.jobs["data source"], found.jobs["pulled inside mapInArrow"]
    console.print(f"the data source takes {source / pulled:.2f} × the time of pulling", highlight=False)


@contextmanager
def _router(directory: Path) -> Iterator[RouterCommand]:
    router = RouterCommand(directory)
    try:
        yield router
    finally:
        router.process.terminate()
        router.process.communicate()


def _ticket(routing: Routing | None = None, channel: int | None = None) -> Ticket:
    return Ticket(log=_NAME, after_seqno=-1, last_seqno=LAST_SEQNO, routing=routing, channel=channel)


def _tickets(routing: Routing) -> list[Ticket]:
    return [_ticket(routing, channel) for channel in range(routing.channels)]


def _stream(router: RouterCommand, what: str, tickets: list[Ticket]) -> StreamLine:
    client = StreamClient(router_address(router.url))
    before, began = seconds_of(router.process.pid), monotonic()
    with ThreadPoolExecutor(len(tickets)) as pool:
        size = sum(pool.map(lambda ticket: sum(batch.nbytes for batch in client.stream(ticket)), tickets))
    spent = monotonic() - began
    client.close()
    return StreamLine(what=what, size_bytes=size, seconds=spent, router_seconds=seconds_of(router.process.pid) - before)


def _split(url: str, channels: int) -> float:
    began, log, routing = process_time(), open_reader(url), Routing(channels=channels)
    partitioner = open_partitioner(routing)
    relations = {relation.relation_id: relation for relation in log.state().relations}
    for batch in log.rows(-1, LAST_SEQNO):
        for _ in by_channel(partitioner, channels, batch, relations):
            continue
    return process_time() - began


def _jobs(url: str, rows: int, repeats: int, tell: Callable[[str], None]) -> dict[str, list[float]]:
    """Rows enter Spark, are filtered there, and leave into a worker that counts them; the first round warms."""
    tickets = [ticket.to_bytes() for ticket in _tickets(Routing(channels=_PARTS))]
    found: dict[str, list[float]] = {}
    with connect_server() as server:
        session = open_session(server.url, str(uuid.uuid4()))
        ways: dict[str, Callable[[], Any]] = {
            "data source": lambda: stream_rows(session, url, tickets),
            "pulled inside mapInArrow": lambda: _pulled(session, url, tickets),
        }
        for number in range(repeats + 1):
            tell(f"Spark jobs, {number} of {repeats}")
            for what, frame in ways.items():
                began = monotonic()
                counted = frame().where("seqno >= 0").mapInArrow(_count, RESULT_SCHEMA).toArrow()
                if sum(map(int, counted.column("result").to_pylist())) != rows:
                    raise AssertionError(f"{what}: {counted}")
                if number:
                    found.setdefault(what, []).append(monotonic() - began)
        close_session(session)
    return found


def _pulled(session: Any, url: str, tickets: list[bytes]) -> Any:
    address = router_address(url)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from pull(address, tickets[number])

    return session.range(0, len(tickets), 1, len(tickets)).mapInArrow(read, LOG_SCHEMA)


def _count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch([pa.array([str(sum(batch.num_rows for batch in batches))])], names=["result"])
