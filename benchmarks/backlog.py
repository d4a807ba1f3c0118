"""Measures a router that holds ten million changes while one of two channels is nine million behind.

One TPC-B-like log, `router serve` in a process of its own with its default budgets, and the store `memory`, fed as
`route` feeds it. The channel with a tenth of the rows is read as soon as they are there, the other not before all of
the log was read. By how much the process has grown is the kernel's figure, allocator and all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from airflow_parallel_apply.pipeline.config import PipelineConfig, RouterEndpoint, StoreName
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.partition.shard_list import ShardList
from airflow_parallel_apply.pipeline.store.open import open_feeder
from airflow_parallel_apply.pipeline.store.protocol import Stretch
from airflow_parallel_apply.pipeline.stream.address import router_address
from airflow_parallel_apply.pipeline.stream.client import StreamClient
from airflow_parallel_apply.pipeline.stream.ticket import Ticket
from benchmarks.processors import seconds_of
from tests.support.routers import RouterCommand
from tests.support.tpcb_log import make_tpcb_log

_ROUTING = Routing(
    channels=2,
    partitioner="shard_list",
    # Rows, not transactions, are divided, since nothing is planned: each table by its key.
    shard_by=(("*.pgbench_accounts", "aid % 10"), ("*.pgbench_tellers", "tid % 10"), ("*", "bid % 10")),
    shards=ShardList(channels=(("0", 1),), default=0),
)
_BEHIND, _AHEAD = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Bytes of the router's process: when it began to serve, the most while it fed and one channel was read, and the
    most until the other was read as well. `behind`: rows that waited for that one, `memory_bytes` and `disk_bytes` of
    them. `seconds`: of the router's processor.
    """

    rows: int
    behind: int
    began_bytes: int
    fed_bytes: int
    most_bytes: int
    memory_bytes: int
    disk_bytes: int
    seconds: float
    blocked_seconds: float


def measure_backlog(directory: Path, transactions: int) -> Backlog:
    """Make the log, feed it, read one channel, then the other. Errors: `AssertionError` where rows are missing."""
    url = directory / "logs" / "bench"
    make_tpcb_log(str(url), transactions, scale=100)
    log = open_reader(str(url))
    rows, last = sum(segment.row_count for segment in log.state().segments), log.state().last_seqno
    router = RouterCommand(directory / "logs")
    try:
        client = StreamClient(router_address(router.url))
        began = _most_bytes(router.process.pid)
        feeder = open_feeder(
            PipelineConfig(
                pipeline="bench",
                log_url=str(url),
                store=StoreName.MEMORY,
                router=RouterEndpoint(conn_id="", url=router.url),
            ),
            log,
            _ROUTING,
        )
        if feeder is None:
            raise AssertionError("memory has a feeder")
        feeder.feed(Stretch(-1, last), lambda: iter(()))

        def read(channel: int) -> int:
            ticket = Ticket(
                log="bench",
                log_id=log.identity.log_id,
                pipeline="bench",
                routing=_ROUTING,
                channel=channel,
                after_seqno=-1,
                last_seqno=last,
            )
            return sum(batch.num_rows for batch in client.stream(ticket))

        ahead = read(_AHEAD)
        held, fed_bytes = feeder.status(), _most_bytes(router.process.pid)
        behind = read(_BEHIND)
        if ahead + behind != rows:
            raise AssertionError(f"{ahead} and {behind} rows of {rows}")
        return Backlog(
            rows=rows,
            behind=behind,
            began_bytes=began,
            fed_bytes=fed_bytes,
            most_bytes=_most_bytes(router.process.pid),
            memory_bytes=held.memory_bytes,
            disk_bytes=held.file_bytes,
            seconds=seconds_of(router.process.pid),
            blocked_seconds=held.channels[_BEHIND].blocked_seconds,
        )
    finally:
        router.process.terminate()
        router.process.communicate()


def print_backlog(console: Console, found: Backlog) -> None:
    """Some lines."""
    for line in (
        f"{found.rows:,} changes fed; {found.behind:,} of them waited for a channel that nobody read, in "
        f"{_mb(found.memory_bytes)} of the router's memory, {_mb(found.disk_bytes)} of them spilled",
        f"that channel was blocked for {found.blocked_seconds:,.0f} s, which held up nobody",
        f"the process had {_mb(found.began_bytes)} when it began to serve, {_mb(found.fed_bytes)} at most while "
        f"it fed, and {_mb(found.most_bytes)} until all was read",
        f"{found.seconds:.1f} seconds of its processor, to read the log and to stream all rows",
    ):
        console.print(line, highlight=False)


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.0f} MB"


def _most_bytes(process_id: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process_id}/status").read_text())
    return 0 if found is None else int(found[1]) * 1024
