"""Measures the way of a log's rows into Spark's Python for each store, by key and by shard with eight channels.

Each store is fed, then a job for each channel reads its rows, orders them and hands them to Python, which drops them:
what lies behind that, loading and merging, is the same for all stores. Channels follow one another, so seconds are
those of one reader; the stores take turns. Processor seconds are those of this process, Spark and the router. Beside it
the bytes that are read: from files, and from the router.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, Final

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from airflow_parallel_apply.pipeline.config import PipelineConfig, StoreName
from airflow_parallel_apply.pipeline.embedded.layout import RUNTIME_DIR_VARIABLE
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.epoch import Branch, Unit
from airflow_parallel_apply.pipeline.partition.open import open_partitioner
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.store.feed import feed_stretch
from airflow_parallel_apply.pipeline.store.open import open_feeder, open_store, remove_held
from airflow_parallel_apply.pipeline.store.protocol import StreamBranch, Stretch
from airflow_parallel_apply.router.embedded import RouterSettings, embedded_router, stop_embedded_router
from airflow_parallel_apply.spark.job import build_job
from airflow_parallel_apply.spark.session import close_session, open_session
from benchmarks.processors import processor_seconds
from benchmarks.stores import SHARD_BY, read_from_log
from benchmarks.suite import warm_spark
from tests.support.tpcb_log import make_tpcb_log

CHANNELS: Final = 8
_STORES: Final = (StoreName.LOG, StoreName.CHANNEL_LOG, StoreName.MEMORY)
_PIPELINE: Final = "bench"
_PART: Final = 25_000
"""Transactions of a unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLine:
    """One partitioner and store. `seconds`, `cpu_seconds`: to feed and to read, for a million changes. `reads`: bytes
    read from files by all channels and by the feeder, over the log's. `streamed_units`: those from the router.
    """

    partitioner: str
    store: StoreName
    seconds: float
    cpu_seconds: float
    reads: float
    streamed_units: int
    units: int


def measure_reading(directory: Path, transactions: int, *, repeats: int) -> tuple[ReadLine, ...]:
    """Medians of `repeats`, by turns."""
    os.environ[RUNTIME_DIR_VARIABLE] = str(directory / "runtime")
    url = str(directory / "reading")
    make_tpcb_log(url, transactions, scale=100)
    log = open_reader(url)
    routings = [
        Routing(channels=CHANNELS),
        Routing(channels=CHANNELS, partitioner="shard", shard_by=SHARD_BY),
    ]
    spent: dict[tuple[str, StoreName], list[ReadLine]] = {}
    lines: dict[tuple[str, StoreName], ReadLine] = {}
    with ExitStack() as stack:
        spark = stack.enter_context(warm_spark(directory, 1))
        stack.enter_context(embedded_router(RouterSettings(memory_mb=2048)))
        stack.callback(stop_embedded_router)
        session = open_session(spark.url, spark.session_id)
        stack.callback(close_session, session)
        # The first jobs of a server compile what the others then have.
        _measure(session, log, routings[0], StoreName.LOG, directory)
        for _ in range(repeats):
            for routing in routings:
                for store in _STORES:
                    key = (routing.partitioner, store)
                    line = _measure(session, log, routing, store, directory)
                    spent.setdefault(key, []).append(line)
                    lines[key] = line
    return tuple(
        ReadLine(
            partitioner=line.partitioner,
            store=line.store,
            seconds=median(one.seconds for one in spent[key]),
            cpu_seconds=median(one.cpu_seconds for one in spent[key]),
            reads=line.reads,
            streamed_units=line.streamed_units,
            units=line.units,
        )
        for key, line in lines.items()
    )


def print_reading(console: Console, lines: tuple[ReadLine, ...]) -> None:
    """As a table."""
    table = Table(title=f"rows into Spark's Python, {CHANNELS} channels", title_justify="left", box=None)
    for name in (
        "partitioner",
        "store",
        "s for a million changes",
        "cpu s",
        "against log",
        "files read",
        "units streamed",
    ):
        table.add_column(name, justify="left" if name in ("partitioner", "store") else "right")
    by_log = {line.partitioner: line.cpu_seconds for line in lines if line.store is StoreName.LOG}
    for line in lines:
        table.add_row(
            line.partitioner,
            line.store,
            f"{line.seconds:.2f}",
            f"{line.cpu_seconds:.2f}",
            f"{line.cpu_seconds / by_log[line.partitioner]:.2f} ×",
            f"{line.reads:.2f} × the log",
            f"{line.streamed_units} of {line.units}",
        )
    console.print(table)


def _measure(session: Any, log: LogReader, routing: Routing, store: StoreName, directory: Path) -> ReadLine:
    config = PipelineConfig(pipeline=_PIPELINE, log_url=str(log.root), store=store, channels=CHANNELS)
    last = log.state().last_seqno
    units = list(_units(log, routing))
    size = sum(segment.file_bytes for segment in log.state().segments)
    streamed, written = 0, 0
    began, worked = monotonic(), processor_seconds(directory)
    feeder = open_feeder(config, log, routing)
    if feeder is not None:
        feed_stretch(log, routing, feeder, Stretch(-1, last))
        written = feeder.status().file_bytes if store is StoreName.CHANNEL_LOG else 0
        feeder.close()
    reading = open_store(config, log)
    for unit in units:
        branch = reading.branch(unit)
        streamed += isinstance(branch, StreamBranch)
        build_job(session, unit, branch).ordered.mapInArrow(_swallow, "rows bigint").toArrow()
    spent, worked = monotonic() - began, processor_seconds(directory) - worked
    reading.close()
    if log.root is not None:
        remove_held(log.root, _PIPELINE)
    if store is StoreName.MEMORY:
        stop_embedded_router()
        with embedded_router(RouterSettings(memory_mb=2048)):
            pass
    reads = {
        StoreName.LOG: read_from_log(log, routing) / size,
        StoreName.CHANNEL_LOG: 1 + written / size,
        StoreName.MEMORY: 1.0,
    }
    rows = sum(unit.row_count for unit in units)
    return ReadLine(
        partitioner=routing.partitioner,
        store=store,
        seconds=spent * 1_000_000 / rows,
        cpu_seconds=worked * 1_000_000 / rows,
        reads=reads[store],
        streamed_units=streamed,
        units=len(units),
    )


def _units(log: LogReader, routing: Routing) -> Iterator[Unit]:
    """Each channel's, one after the other, as lanes claim them."""
    state = log.state()
    partitioner, relations = open_partitioner(routing), {one.relation_id: one for one in state.relations}
    parts = -(-(state.last_seqno + 1) // _PART)
    counts = np.zeros((parts, routing.channels), dtype=np.int64)
    for batch in log.rows(-1, state.last_seqno):
        channels = partitioner.place(batch, relations).channels
        placed = channels >= 0
        np.add.at(counts, (batch.column("seqno").to_numpy()[placed] // _PART, channels[placed]), 1)
    for part in range(parts):
        for channel in range(routing.channels):
            if counts[part, channel]:
                yield Unit(
                    pipeline=_PIPELINE,
                    generation=1,
                    kind=Branch(channel),
                    channels=routing.channels,
                    token="bench",  # noqa: S106  # the name of a claim
                    after_seqno=part * _PART - 1,
                    last_seqno=min((part + 1) * _PART - 1, state.last_seqno),
                    row_count=int(counts[part, channel]),
                    routing=routing,
                )


def _swallow(batches: Any) -> Iterator[pa.RecordBatch]:
    import pyarrow

    rows = sum(batch.num_rows for batch in batches)
    yield pyarrow.record_batch([pyarrow.array([rows])], names=["rows"])
