"""Measures what feeding the store `channel_log` costs with growing numbers of channels, and reading from either store.

One TPC-B-like log. Each line feeds all of it: read the log once, split by channel, write a log for each. Beside it the
same without writing, which is the limit. Bytes read are those of the row groups that a scan cannot skip, of all
channels together, over the log's own.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic, process_time
from typing import Final

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from airflow_parallel_apply.pipeline.config import PipelineConfig, StoreName
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.partition.channel import bucket_range
from airflow_parallel_apply.pipeline.partition.open import open_partitioner
from airflow_parallel_apply.pipeline.partition.routing import KEY, Routing
from airflow_parallel_apply.pipeline.store.feed import by_channel, feed_stretch
from airflow_parallel_apply.pipeline.store.open import open_feeder
from airflow_parallel_apply.pipeline.store.protocol import Stretch
from tests.support.tpcb_log import make_tpcb_log

CHANNELS: Final = (2, 4, 8, 64)
SHARD_BY: Final = (("*.pgbench_accounts", "aid % 1000"), ("*.pgbench_tellers", "tid"), ("*", "bid"))
"""Each table by its key, so that every row has a shard. A transaction's rows then lie in several; nothing is planned
here, and stores hold rows.
"""
_PIPELINE: Final = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class FedLine:
    """One partitioner and number of channels. `log_reads`, `own_reads`: bytes that all channels together read from the
    log and from their own logs, over the log's.
    """

    partitioner: str
    channels: int
    feed_seconds: float
    cpu_seconds: float
    split_seconds: float
    files: int
    log_reads: float
    own_reads: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLines:
    """The lines, and the log that they are of. `value_bytes`: uncompressed."""

    rows: int
    value_bytes: int
    file_bytes: int
    lines: tuple[FedLine, ...]


def measure_stores(directory: Path, transactions: int, *, repeats: int) -> StoreLines:
    """Medians of `repeats`, by turns."""
    url = str(directory / "log")
    make_tpcb_log(url, transactions, scale=100)
    log = open_reader(url)
    routings = [Routing(channels=channels) for channels in CHANNELS]
    routings += [Routing(channels=channels, partitioner="shard", shard_by=SHARD_BY) for channels in CHANNELS]
    fed: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    split: dict[str, list[float]] = {}
    files: dict[str, tuple[int, int]] = {}
    for _ in range(repeats):
        for routing in routings:
            split.setdefault(routing.digest, []).append(_split(log, routing))
            spent, worked, files[routing.digest] = _feed(log, routing)
            fed.setdefault(routing.digest, []).append(spent)
            cpu.setdefault(routing.digest, []).append(worked)
    segments = log.state().segments
    size = sum(segment.file_bytes for segment in segments)
    return StoreLines(
        rows=sum(segment.row_count for segment in segments),
        value_bytes=sum(segment.byte_count for segment in segments),
        file_bytes=size,
        lines=tuple(
            FedLine(
                partitioner=routing.partitioner,
                channels=routing.channels,
                feed_seconds=median(fed[routing.digest]),
                cpu_seconds=median(cpu[routing.digest]),
                split_seconds=median(split[routing.digest]),
                files=files[routing.digest][0],
                log_reads=read_from_log(log, routing) / size,
                own_reads=files[routing.digest][1] / size,
            )
            for routing in routings
        ),
    )


def print_stores(console: Console, found: StoreLines) -> None:
    """A table, its times as rates."""
    table = Table(
        title=f"channel_log fed from a log of {found.rows:,} rows, {found.value_bytes / 2**20:,.0f} MB of values in "
        f"{found.file_bytes / 2**20:,.0f} MB of files",
        title_justify="left",
        box=None,
    )
    for name in (
        "partitioner",
        "channels",
        "seconds",
        "rows/s",
        "MB/s",
        "cpu s",
        "split cpu s",
        "files",
        "log reads",
        "own reads",
    ):
        table.add_column(name, justify="left" if name == "partitioner" else "right")
    for line in found.lines:
        table.add_row(
            line.partitioner,
            str(line.channels),
            f"{line.feed_seconds:.2f}",
            f"{found.rows / line.feed_seconds:,.0f}",
            f"{found.value_bytes / 2**20 / line.feed_seconds:,.0f}",
            f"{line.cpu_seconds:.2f}",
            f"{line.split_seconds:.2f}",
            str(line.files),
            f"{line.log_reads:.2f} ×",
            f"{line.own_reads:.2f} ×",
        )
    console.print(table)
    for partitioner in dict.fromkeys(line.partitioner for line in found.lines):
        seconds = {line.channels: line.cpu_seconds for line in found.lines if line.partitioner == partitioner}
        few, many = min(seconds), max(seconds)
        console.print(
            f"{partitioner}: {many} channels take {seconds[many] / seconds[few]:.2f} × the processor seconds of {few}",
            highlight=False,
        )


def _split(log: LogReader, routing: Routing) -> float:
    began = process_time()
    state = log.state()
    partitioner, relations = open_partitioner(routing), {found.relation_id: found for found in state.relations}
    for batch in log.rows(-1, state.last_seqno):
        for _ in by_channel(partitioner, routing.channels, batch, relations):
            continue
    return process_time() - began


def _feed(log: LogReader, routing: Routing) -> tuple[float, float, tuple[int, int]]:
    """Seconds; those of processors; how many files there are, and their bytes."""
    config = PipelineConfig(pipeline=_PIPELINE, log_url=str(log.root), store=StoreName.CHANNEL_LOG)
    feeder = open_feeder(config, log, routing)
    if feeder is None:
        raise AssertionError("channel_log has a feeder")
    began, working = monotonic(), process_time()
    feed_stretch(log, routing, feeder, Stretch(-1, log.state().last_seqno))
    spent, worked = monotonic() - began, process_time() - working
    stats = feeder.status()
    if stats.row_count != sum(segment.row_count for segment in log.state().segments):
        raise AssertionError(f"{stats.row_count} rows were fed, and the log has others")
    if log.root is not None:
        shutil.rmtree(log.root / "channels")
    return spent, worked, (stats.file_count, stats.file_bytes)


def read_from_log(log: LogReader, routing: Routing) -> int:
    """The bytes that all channels together cannot skip: only by key do the files' statistics tell what they can."""
    read = 0
    for path in log.row_files(-1, log.state().last_seqno):
        metadata = pq.read_metadata(path)
        place = metadata.schema.to_arrow_schema().get_field_index("bucket")
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            size = sum(group.column(column).total_compressed_size for column in range(group.num_columns))
            buckets = group.column(place).statistics
            read += size * sum(
                routing.partitioner != KEY or (first <= buckets.max and last >= buckets.min)
                for first, last in (bucket_range(channel, routing.channels) for channel in range(routing.channels))
            )
    return read
