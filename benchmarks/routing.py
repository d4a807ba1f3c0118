"""Measures the router's engine: MB/s and rows/s for 2 to 64 outputs, beside the same split done in other ways.

One source of rows like a log's, already in memory. In turns: the split by pyarrow alone, which is the limit; the
engine, with a consumer thread for each output, all reading or one not; a `queue.Queue` for each output, row by row; and
Spark's own `repartition` by the same bucket, without what its scan costs. Seconds are processor seconds of all threads.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.partition.split import split
from airflow_parallel_apply.router.engine import Budget, PlacedRoutes, StreamOutput, Tagged, stream_engine

OUTPUTS: Final = (2, 4, 8, 64)
_BATCH_ROWS: Final = 65_536
_BATCHES: Final = 40
_FILE_BATCHES: Final = 8
_QUEUED_ROWS: Final = 16_384
_BUCKETS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedLine:
    """A number of outputs; MB a processor second of each way. `decoded`: the engine, with rows that are read from a
    segment's file as they are routed; `blocked`: the same while one output is never read, so that its rows go to the
    disk. `decoded_by_clock` and `blocked_by_clock`: these two in MB a second of the clock, where a free core spills.
    `queues`: row by row.
    """

    outputs: int
    split: float
    engine: float
    decoded: float
    blocked: float
    decoded_by_clock: float
    blocked_by_clock: float
    queues: float
    spark: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillLine:
    """A way to keep a batch on disk. `size`: over the batch's own; rates in MB a processor second."""

    name: str
    size: float
    write: float
    read: float


def measure_routing(directory: Path, *, repeats: int) -> tuple[int, tuple[RoutedLine, ...]]:
    """Bytes of a row, and a line for each number of outputs; medians of `repeats`, by turns."""
    pa.set_cpu_count(1)
    batch = _batch(_BATCH_ROWS)
    megabytes = _BATCHES * batch.nbytes / 1e6
    path = directory / "rows.parquet"
    pq.write_table(pa.Table.from_batches([batch] * _FILE_BATCHES), path, compression="zstd", row_group_size=_BATCH_ROWS)
    with _spark_session() as spark:
        lines = []
        for outputs in OUTPUTS:
            ways = {
                "split": partial(_split, batch, outputs),
                "engine": partial(_route, _in_memory(batch), outputs, directory),
                "decoded": partial(_route, _decoded(path), outputs, directory),
                "blocked": partial(_route, _decoded(path), outputs, directory, blocked=True),
                "decoded_by_clock": partial(_route, _decoded(path), outputs, directory, clock=perf_counter),
                "blocked_by_clock": partial(
                    _route, _decoded(path), outputs, directory, blocked=True, clock=perf_counter
                ),
                "queues": partial(_queues, batch, outputs),
                "spark": partial(_repartition, spark, path, outputs),
            }
            rates: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(repeats):
                for name, way in ways.items():
                    rates[name].append(megabytes / way())
            lines.append(RoutedLine(outputs=outputs, **{name: median(found) for name, found in rates.items()}))
    return batch.nbytes // _BATCH_ROWS, tuple(lines)


def measure_spills(directory: Path, *, repeats: int) -> tuple[SpillLine, ...]:
    """An Arrow stream for each batch, uncompressed and compressed, and the writer of the log's segments."""
    batch = _batch(_BATCH_ROWS // 8)
    path = directory / "spill"
    lines = []
    for name, write, read in (
        ("Arrow stream", partial(_write_stream, None), _read_stream),
        ("Arrow stream, LZ4", partial(_write_stream, "lz4"), _read_stream),
        ("Arrow stream, ZSTD", partial(_write_stream, "zstd"), _read_stream),
        ("Parquet, ZSTD, as the log's segments", _write_parquet, pq.read_table),
    ):
        writes, reads = [], []
        for _ in range(repeats):
            writes.append(_seconds(partial(write, path, batch)))
            reads.append(_seconds(partial(read, path)))
        lines.append(
            SpillLine(
                name=name,
                size=path.stat().st_size / batch.nbytes,
                write=batch.nbytes / 1e6 / median(writes),
                read=batch.nbytes / 1e6 / median(reads),
            )
        )
    return tuple(lines)


def print_routing(
    console: Console, row_bytes: int, lines: tuple[RoutedLine, ...], spills: tuple[SpillLine, ...]
) -> None:
    """Two tables."""
    table = Table(
        title=f"rows of {row_bytes} bytes, MB a second of one core; published for CockroachDB's router: 150 to 167",
        title_justify="left",
        box=None,
    )
    for name in (
        "outputs",
        "pyarrow alone",
        "engine",
        "rows/s",
        "× pyarrow",
        "from a file",
        "one blocked",
        "by the clock",
        "queues",
        "Spark",
    ):
        table.add_column(name, justify="right")
    for line in lines:
        table.add_row(
            str(line.outputs),
            f"{line.split:,.0f}",
            f"{line.engine:,.0f}",
            f"{line.engine * 1e6 / row_bytes:,.0f}",
            f"{line.engine / line.split:.2f}",
            f"{line.decoded:,.0f}",
            f"{line.blocked / line.decoded:.2f} ×",
            f"{line.blocked_by_clock / line.decoded_by_clock:.2f} ×",
            f"{line.queues:,.0f}",
            f"{line.spark:,.0f}",
        )
    console.print(table)
    kept = Table(title="a batch kept on disk, MB a second of one core", title_justify="left", box=None)
    for name in ("way", "size", "write", "read"):
        kept.add_column(name, justify="left" if name == "way" else "right")
    for spill in spills:
        kept.add_row(spill.name, f"{spill.size:.2f} ×", f"{spill.write:,.0f}", f"{spill.read:,.0f}")
    console.print(kept)


def _batch(rows: int) -> pa.RecordBatch:
    """Updates of pgbench's accounts."""
    random = np.random.default_rng(1)
    accounts = random.integers(1, 10_000_000, rows)
    keys = pc.cast(pa.array(accounts), pa.string())
    values = pc.binary_join_element_wise(keys, "12", "-345", " " * 84, "\t")
    nothing = pa.nulls(rows, pa.string())
    columns = [
        np.arange(rows),
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int32),
        pa.array(["U"] * rows),
        random.integers(0, _BUCKETS, rows).astype(np.int32),
        keys,
        accounts,
        np.full(rows, -1),
        np.full(rows, -1),
        values,
        nothing,
        nothing,
    ]
    return pa.record_batch(columns, schema=ROWS)


def _place(outputs: int, batch: pa.RecordBatch) -> Any:
    return batch.column("bucket").to_numpy().astype(np.int64) * outputs // _BUCKETS


def _seconds(work: Callable[[], object], clock: Callable[[], float] = process_time) -> float:
    started = clock()
    work()
    return clock() - started


def _split(batch: pa.RecordBatch, outputs: int) -> float:
    def work() -> None:
        for _ in range(_BATCHES):
            for _ in split(batch, _place(outputs, batch), outputs):
                pass

    return _seconds(work)


def _in_memory(batch: pa.RecordBatch) -> Callable[[], Iterator[Tagged]]:
    return lambda: (Tagged(batch) for _ in range(_BATCHES))


def _decoded(path: Path) -> Callable[[], Iterator[Tagged]]:
    def batches() -> Iterator[Tagged]:
        for _ in range(_BATCHES // _FILE_BATCHES):
            for batch in pq.ParquetFile(path).iter_batches(_BATCH_ROWS, use_threads=False):
                yield Tagged(batch)

    return batches


def _route(
    source: Callable[[], Iterator[Tagged]],
    outputs: int,
    directory: Path,
    *,
    blocked: bool = False,
    clock: Callable[[], float] = process_time,
) -> float:
    budget = Budget(memory_bytes=64 * 2**20, disk_bytes=16 * 2**30)
    routes = PlacedRoutes(partial(_place, outputs), outputs)
    with stream_engine(routes=routes, budget=budget, directory=directory) as engine:
        read = [engine.output(number) for number in range(int(blocked), outputs)]

        def work() -> None:
            consumers = [threading.Thread(target=_drain, args=(output,)) for output in read]
            for consumer in consumers:
                consumer.start()
            engine.run(source())
            for consumer in consumers:
                consumer.join()

        return _seconds(work, clock)


def _drain(output: StreamOutput) -> None:
    for _ in output:
        pass


def _queues(batch: pa.RecordBatch, outputs: int) -> float:
    """A part of the batch: row by row takes long."""
    part = batch.slice(0, _QUEUED_ROWS)
    queues: list[queue.Queue[Any]] = [queue.Queue(maxsize=1000) for _ in range(outputs)]

    def consume(one: queue.Queue[Any]) -> None:
        while one.get() is not None:
            pass

    def work() -> None:
        consumers = [threading.Thread(target=consume, args=(one,)) for one in queues]
        for consumer in consumers:
            consumer.start()
        for row, place in zip(part.to_pylist(), _place(outputs, part).tolist(), strict=True):
            queues[place].put(row)
        for one in queues:
            one.put(None)
        for consumer in consumers:
            consumer.join()

    return _seconds(work) * _BATCHES * _BATCH_ROWS / _QUEUED_ROWS


@contextmanager
def _spark_session() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def _repartition(spark: Any, path: Path, outputs: int) -> float:
    """Processor seconds of the JVM, over those of the scan alone."""
    rows = spark.read.parquet(str(path))
    stat = Path(f"/proc/{spark._jvm.java.lang.ProcessHandle.current().pid()}/stat")

    def seconds(frame: Any) -> float:
        started = _ticks(stat)
        frame.write.format("noop").mode("overwrite").save()
        return (_ticks(stat) - started) / os.sysconf("SC_CLK_TCK")

    divided = rows.repartition(outputs, (rows["bucket"] * outputs / _BUCKETS).cast("int"))
    seconds(divided)
    return max(seconds(divided) - seconds(rows), 1e-3) * _BATCHES / _FILE_BATCHES


def _ticks(stat: Path) -> int:
    """Processor time of a process, its own and the kernel's."""
    fields = stat.read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _write_stream(codec: str | None, path: Path, batch: pa.RecordBatch) -> None:
    with (
        path.open("wb") as file,
        pa.ipc.new_stream(file, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer,
    ):
        writer.write_batch(batch)


def _read_stream(path: Path) -> Any:
    return pa.ipc.open_stream(path.read_bytes()).read_next_batch()


def _write_parquet(path: Path, batch: pa.RecordBatch) -> None:
    pq.write_table(pa.Table.from_batches([batch]), path, compression="zstd")
