"""Measures the encoders: rows of a log, typed and encoded in each format by 1 and 2 workers, against encoders by rows.

All in memory, so that no disk is measured. Peers get what they take: fastavro and orjson lists of dictionaries, whose
making is told beside them, since rows of a log do not come as such; Spark's writers a DataFrame in Spark's memory.

What two workers can gain is told by a hash, which needs no lock of Python's: on a machine with other work that is below
2. `turns/s`: how often another thread of the process, which sleeps half a millisecond, wakes while one worker encodes:
about as often as beside the hash where the interpreter's lock is let go, and a few times a second where it is held.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic, process_time
from typing import Any, Final

import fastavro
import orjson
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from airflow_parallel_apply.pipeline.encode.avro.schema import avro_schema
from airflow_parallel_apply.pipeline.encode.columns.rows import RowTyping, row_typing, typed_rows
from airflow_parallel_apply.pipeline.encode.formats import Format
from airflow_parallel_apply.pipeline.encode.open import open_encoder
from airflow_parallel_apply.pipeline.encode.pool import Pool
from airflow_parallel_apply.pipeline.encode.protocol import Encoder
from airflow_parallel_apply.pipeline.encode.ranges import cursors
from benchmarks.encoded_rows import TABLES, commit_times, log_rows, relation, typed_table
from benchmarks.interpreter_lock import hash_once, ideal_gain, loop_once, turns_beside
from benchmarks.spark_writers import spark_seconds, spark_session

_BATCH: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeLine:
    """One way to encode. `seconds` by the number of workers; `cpu_seconds` with one."""

    what: str
    rows: int
    seconds: dict[int, float]
    cpu_seconds: float
    byte_count: int
    turns: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """All lines of one table. `ideal`: what two threads gain that need no lock. `free`, `held`: turns of another thread
    beside work without the lock, and with it.
    """

    table: str
    ideal: float
    free: float
    held: float
    lines: tuple[EncodeLine, ...]


def measure_encoding(rows: int, *, repeats: int, tell: Callable[[str], None]) -> list[Encoding]:
    """Medians of `repeats`, by turns."""
    return [_measure(name, rows, repeats, tell) for name in TABLES]


def measure_spark(directory: Path, rows: int, *, repeats: int) -> Iterator[str]:
    """Lines about Spark's own writers of the same rows. Behind ours, so that those share the machine with nobody."""
    with spark_session(directory) as session:
        for name in TABLES:
            _, typed = typed_table(name, rows)
            for what, seconds in spark_seconds(session, typed, directory, repeats=repeats).items():
                yield f"Spark's {what}, {name}: {seconds[1]:.2f} s by one task, {seconds[2]:.2f} s by two"


def print_encoding(console: Console, found: Sequence[Encoding]) -> None:
    """A table for each width."""
    for one in found:
        table = Table(
            title=f"{one.lines[0].rows:,} {one.table} rows; two threads without a lock gain {one.ideal:.2f} ×; "
            f"beside such work another one has {one.free:,.0f} turns/s, beside a loop in Python {one.held:,.0f}",
            title_justify="left",
            box=None,
        )
        table.add_column("what")
        for name in ("1 worker, s", "rows/s", "cpu s", "2 workers, s", "gain", "turns/s", "MB"):
            table.add_column(name, justify="right")
        for line in one.lines:
            alone, two = line.seconds[1], line.seconds.get(2)
            table.add_row(
                line.what,
                f"{alone:.2f}",
                f"{line.rows / alone:,.0f}",
                f"{line.cpu_seconds:.2f}",
                "" if two is None else f"{two:.2f}",
                "" if two is None else f"{alone / two:.2f} ×",
                "" if line.turns is None else f"{line.turns:,.0f}",
                f"{line.byte_count / 2**20:,.0f}",
            )
        console.print(table)
        for line_ in summary(one):
            console.print(line_, highlight=False)


def summary(found: Encoding) -> list[str]:
    """The ratios of one table: what a second worker gains, and ours beside encoders by rows."""
    cpu = {line.what: line.cpu_seconds for line in found.lines}
    alone = {line.what: line.seconds[1] for line in found.lines}
    gains = sorted((line.seconds[1] / line.seconds[2], line.what) for line in found.lines if 2 in line.seconds)
    lines = [
        f"2 workers, {found.table} rows: at least {gains[0][0]:.2f} × ({gains[0][1]}), "
        f"median {median(gain for gain, _ in gains):.2f} ×, threads without a lock {found.ideal:.2f} ×"
    ]
    for ours, peer in (("avro, not compressed", "fastavro"), ("json", "orjson")):
        fed = f"{peer}, with its rows"
        lines.append(
            f"{ours}, {found.table} rows, 1 worker: {alone[peer] / alone[ours]:.1f} × {peer}, "
            f"{alone[fed] / alone[ours]:.1f} × with the making of its rows; "
            f"in processor seconds {cpu[peer] / cpu[ours]:.1f} × and {cpu[fed] / cpu[ours]:.1f} ×"
        )
    return lines


def _measure(name: str, rows: int, repeats: int, tell: Callable[[str], None]) -> Encoding:
    typing = row_typing(relation(name))
    found_rows = log_rows(TABLES[name], rows)
    times = commit_times(rows)
    typed = pa.Table.from_batches([typed_rows(found_rows, typing, times)])
    encoders: dict[str, Encoder] = {str(format_): open_encoder(format_, typing) for format_ in Format}
    encoders["avro, not compressed"] = _plain_avro(typing)
    works: dict[str, Callable[[int], int]] = {
        "typing alone": partial(_type, found_rows, typing, times),
        **{what: partial(_encode, encoder, typed) for what, encoder in encoders.items()},
    }
    seconds: dict[str, dict[int, list[float]]] = {what: {1: [], 2: []} for what in works}
    cpu: dict[str, list[float]] = {what: [] for what in works}
    turns: dict[str, list[float]] = {what: [] for what in works}
    free: list[float] = []
    held: list[float] = []
    sizes: dict[str, int] = {}
    ideal: list[float] = []
    for turn in range(repeats):
        tell(f"{name} rows, turn {turn + 1} of {repeats}")
        ideal.append(ideal_gain())
        free.append(turns_beside(hash_once))
        held.append(turns_beside(loop_once))
        for what, work in works.items():
            for workers in (1, 2):
                spent, worked, sizes[what] = _timed(partial(work, workers))
                seconds[what][workers].append(spent)
                if workers == 1:
                    cpu[what].append(worked)
            turns[what].append(turns_beside(partial(work, 1)))
    lines_ = [
        EncodeLine(
            what=what,
            rows=rows,
            seconds={workers: median(found) for workers, found in seconds[what].items()},
            cpu_seconds=median(cpu[what]),
            byte_count=sizes[what],
            turns=median(turns[what]),
        )
        for what in works
    ]
    tell(f"{name} rows, encoders by rows")
    return Encoding(
        table=name,
        ideal=median(ideal),
        free=median(free),
        held=median(held),
        lines=(*lines_, *_peers(typing, typed)),
    )


def _peers(typing: RowTyping, typed: pa.Table) -> list[EncodeLine]:
    """In parts: a million dictionaries would fill the memory."""
    schema = fastavro.parse_schema(avro_schema(typing.schema, typing.table))

    def by_fastavro(rows: list[dict[str, Any]]) -> int:
        file = io.BytesIO()
        fastavro.writer(file, schema, rows, codec="null")
        return file.tell()

    def by_orjson(rows: list[dict[str, Any]]) -> int:
        return sum(len(orjson.dumps(row, default=str, option=orjson.OPT_APPEND_NEWLINE)) for row in rows)

    spent: dict[str, list[tuple[float, float, int]]] = {"rows": [], "fastavro": [], "orjson": []}
    peers = {"fastavro": by_fastavro, "orjson": by_orjson}
    rows: list[dict[str, Any]] = []
    for start in range(0, typed.num_rows, _BATCH):
        part = typed.slice(start, _BATCH)
        spent["rows"].append(_timed(lambda part=part: len(part.to_pylist())))  # type: ignore[misc]
        rows = part.to_pylist()
        for what, peer in peers.items():
            spent[what].append(_timed(partial(peer, rows)))
    sums = {what: tuple(map(sum, zip(*found, strict=True))) for what, found in spent.items()}
    found = []
    for what, peer in peers.items():
        turns = turns_beside(partial(peer, rows[: _BATCH // 8]))
        for suffix, (more, more_busy, _) in (("", (0.0, 0.0, 0)), (", with its rows", sums["rows"])):
            alone, busy, size = sums[what]
            found.append(
                EncodeLine(
                    what=what + suffix,
                    rows=typed.num_rows,
                    seconds={1: alone + more},
                    cpu_seconds=busy + more_busy,
                    byte_count=int(size),
                    turns=None if suffix else turns,
                )
            )
    return found


def _type(rows: pa.RecordBatch, typing: RowTyping, times: pa.Array, workers: int) -> int:
    def work(start: int) -> Any:
        part = rows.slice(start, _BATCH)
        yield typed_rows(part, typing, times.slice(start, _BATCH)).nbytes

    sizes: list[int] = []
    Pool(threads=workers).ordered((partial(work, start) for start in range(0, rows.num_rows, _BATCH)), sizes.append)
    return sum(sizes)


def _encode(encoder: Encoder, typed: pa.Table, workers: int) -> int:
    sizes: list[int] = []
    works = (partial(_body, encoder, cursor) for cursor in cursors(typed, [], 2))
    Pool(threads=workers).ordered(works, lambda piece: sizes.append(len(piece)))
    return sum(sizes)


def _body(encoder: Encoder, cursor: Any) -> Any:
    return encoder.body(cursor.open())


def _plain_avro(typing: RowTyping) -> Encoder:
    from airflow_parallel_apply.pipeline.encode.avro.encoder import AvroEncoder

    return AvroEncoder(typing.schema, typing.table, codec="null")


def _timed(work: Callable[[], int]) -> tuple[float, float, int]:
    began, working = monotonic(), process_time()
    result = work()
    return monotonic() - began, process_time() - working, result
