"""Measures the encoders: rows of a log, typed and encoded in each format by 1 and 2 workers, against encoders by rows.

All in memory, so that no disk is measured. Workers are the pool's threads, and beside them processes, which get rows
and give bytes through shared memory. Peers get what they take: fastavro and orjson lists of dictionaries, whose making
is told beside them, since rows of a log do not come as such; Spark's writers a DataFrame in Spark's memory.

What two workers can gain is told by a hash, which needs no lock of Python's: on a machine with other work that is below
2. `turns/s`: how often another thread of the process, which sleeps half a millisecond, wakes while one worker encodes:
about as often as beside the hash where the interpreter's lock is let go, and a few times a second where it is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.encoded_rows import TABLES, typed_table
from benchmarks.encoding_peers import PeerLine, measure_peers, timed
from benchmarks.encoding_processes import Processes, warm_processes
from benchmarks.encoding_ways import TYPING, WAYS, encode_in_threads, rows_of
from benchmarks.interpreter_lock import hash_once, ideal_gain, loop_once, turns_beside
from benchmarks.spark_writers import spark_seconds, spark_session

WORKERS: Final = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class WayLine:
    """One way to encode, by the number of workers: seconds and processor seconds of threads, seconds of processes."""

    what: str
    seconds: dict[int, float]
    cpu_seconds: dict[int, float]
    process_seconds: dict[int, float]
    byte_count: int
    turns: float

    @property
    def gain(self) -> float:
        """The gain of the second thread."""
        return self.seconds[1] / self.seconds[2]

    @property
    def process_gain(self) -> float:
        """Two processes beside one thread, which needs no hand-over."""
        return self.seconds[1] / self.process_seconds[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """All lines of one table. `ideal`: what two threads gain that need no lock. `free`, `held`: turns of another thread
    beside work without the lock, and with it.
    """

    table: str
    rows: int
    ideal: float
    free: float
    held: float
    lines: tuple[WayLine, ...]
    peers: tuple[PeerLine, ...]


def measure_encoding(rows: int, *, repeats: int, tell: Callable[[str], None]) -> list[Encoding]:
    """Medians of `repeats`, by turns."""
    with warm_processes(max(WORKERS)) as processes:
        return [_measure(name, rows, repeats, processes, tell) for name in TABLES]


def measure_spark(directory: Path, rows: int, *, repeats: int) -> Iterator[str]:
    """Lines about Spark's own writers of the same rows. Behind ours, so that those share the machine with nobody."""
    with spark_session(directory) as session:
        for name in TABLES:
            _, typed = typed_table(name, rows)
            for what, seconds in spark_seconds(session, typed, directory, repeats=repeats).items():
                yield f"Spark's {what}, {name}: {seconds[1]:.2f} s by one task, {seconds[2]:.2f} s by two"


def _measure(name: str, count: int, repeats: int, processes: Processes, tell: Callable[[str], None]) -> Encoding:
    raw, typed = rows_of(name, count)
    rows = {way: raw if way == TYPING else typed for way in WAYS}
    seconds: dict[str, dict[int, list[float]]] = {way: {workers: [] for workers in WORKERS} for way in WAYS}
    cpu: dict[str, dict[int, list[float]]] = {way: {workers: [] for workers in WORKERS} for way in WAYS}
    by_processes: dict[str, dict[int, list[float]]] = {way: {workers: [] for workers in WORKERS} for way in WAYS}
    sizes: dict[str, int] = {}
    ideal: list[float] = []
    for turn in range(repeats):
        tell(f"{name} rows, turn {turn + 1} of {repeats}")
        ideal.append(ideal_gain())
        for way in WAYS:
            for workers in WORKERS:
                spent, worked, sizes[way] = timed(partial(encode_in_threads, way, name, rows[way], workers))
                seconds[way][workers].append(spent)
                cpu[way][workers].append(worked)
            for workers in WORKERS:
                spent, _, _ = timed(partial(processes.encode, way, name, rows[way], workers))
                by_processes[way][workers].append(spent)
    tell(f"{name} rows, another thread's turns")
    turns = {way: turns_beside(partial(encode_in_threads, way, name, rows[way], 1)) for way in WAYS}
    free, held = turns_beside(hash_once), turns_beside(loop_once)
    tell(f"{name} rows, encoders by rows")
    return Encoding(
        table=name,
        rows=count,
        ideal=median(ideal),
        free=free,
        held=held,
        lines=tuple(
            WayLine(
                what=way,
                seconds=_medians(seconds[way]),
                cpu_seconds=_medians(cpu[way]),
                process_seconds=_medians(by_processes[way]),
                byte_count=sizes[way],
                turns=turns[way],
            )
            for way in WAYS
        ),
        peers=tuple(measure_peers(name, typed)),
    )


def _medians(found: dict[int, list[float]]) -> dict[int, float]:
    return {workers: median(values) for workers, values in found.items()}
