"""Measures catching up into MariaDB: its own replica with 0 to 8 parallel threads, and ours from the log.

Each begins stopped, with the whole history at hand: the replica in its relay log, ours in the log, captured and
planned. The clock runs until the last transaction is committed. Replica and target have the same settings, and both
sync each commit. Kinds take turns; each is compared with the source once. Of a history's larger sizes, only the best
replica and the best of ours.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.histories import histories
from benchmarks.lanes import SparkAccess, measure_from_log
from benchmarks.mariadb_world import MariaDbWorld, build_mariadb_world
from benchmarks.processors import processor_seconds
from benchmarks.settings import BenchSettings
from benchmarks.suite import warm_spark

THREADS: Final = (0, 2, 4, 8)
CHANNELS: Final = (1, 2, 4)
_WARM_UPS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to catch up. `count`: of threads, or of channels."""

    is_ours: bool
    count: int

    def __str__(self) -> str:
        if self.is_ours:
            return f"ours from the log, {self.count} channel{'s' if self.count > 1 else ''}"
        return f"MariaDB's replica, {self.count} parallel threads"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """Each measurement of one way to catch up with one history. `processor_seconds`: their median."""

    way: Way
    all_seconds: tuple[float, ...]
    processor_seconds: float

    @property
    def seconds(self) -> float:
        """The median."""
        return median(self.all_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUps:
    """All ways of one history. `durability`: of the replica, and of ours."""

    history: str
    changes: int
    durability: tuple[str, str]
    found: tuple[CatchUp, ...]

    def best(self, *, is_ours: bool) -> CatchUp:
        """The fastest of a side."""
        return min((one for one in self.found if one.way.is_ours == is_ours), key=lambda one: one.seconds)


def measure_catch_ups(
    directory: Path, settings: BenchSettings, names: Sequence[str], times: Sequence[int], say: Callable[[str], None]
) -> list[CatchUps]:
    """Each history by itself, so many times BENCH_WORKLOAD_CHANGES changes of it, BENCH_REPEATS times. Of all sizes but
    the first, what was best there.
    """
    found: list[CatchUps] = []
    with warm_spark(directory, max(CHANNELS)) as spark:
        for name in names:
            ways = [*(Way(is_ours=False, count=count) for count in THREADS)]
            ways += [Way(is_ours=True, count=count) for count in CHANNELS]
            for time in times:
                history = histories(settings.workload_changes * time)[name]
                say(f"{name}: {history.name}")
                place = directory / f"{name}_{time}"
                with build_mariadb_world(place, history) as world:
                    for _ in range(0 if found else _WARM_UPS):
                        _ours(world, spark, 2, False)
                    found.append(_measure(world, spark, ways, settings.repeats, say))
                shutil.rmtree(place, ignore_errors=True)
                ways = [found[-1].best(is_ours=is_ours).way for is_ours in (False, True)]
    return found


def print_catch_ups(console: Console, found: CatchUps) -> None:
    """A table, and the ratio of ours to the best replica."""
    console.print(f"{found.history}: {found.changes:,} changes", highlight=False)
    for side, told in zip(("replica", "ours"), found.durability, strict=True):
        console.print(f"{side}: {told}", highlight=False)
    best = found.best(is_ours=False).seconds
    table = Table(box=None)
    for heading in ("what", "seconds", "changes/s", "× best replica", "cpu s", "all"):
        table.add_column(heading, justify="left" if heading in ("what", "all") else "right")
    for one in found.found:
        table.add_row(
            str(one.way),
            f"{one.seconds:.2f}",
            f"{found.changes / one.seconds:,.0f}",
            f"{best / one.seconds:.2f}",
            f"{one.processor_seconds:.2f}",
            " ".join(f"{seconds:.2f}" for seconds in one.all_seconds),
        )
    console.print(table)


def _measure(
    world: MariaDbWorld, spark: SparkAccess, ways: Iterable[Way], repeats: int, say: Callable[[str], None]
) -> CatchUps:
    runs: dict[Way, Callable[[bool], tuple[float, float]]] = {
        way: partial(_ours, world, spark, way.count) if way.is_ours else partial(_replica, world, way.count)
        for way in ways
    }
    found: dict[Way, list[tuple[float, float]]] = {way: [] for way in runs}
    for repeat in range(repeats):
        for way, run in runs.items():
            seconds, spent = run(repeat == 0)
            found[way].append((seconds, spent))
            say(f"{way}: {seconds:.2f} s, {spent:.2f} of processors")
    with world.replica:
        of_replica = world.durability(world.replica)
    with world.target:
        of_ours = world.durability(world.target)
    return CatchUps(
        history=world.world.history.name,
        changes=world.world.history.changes,
        durability=(of_replica, of_ours),
        found=tuple(
            CatchUp(
                way=way,
                all_seconds=tuple(seconds for seconds, _ in measured),
                processor_seconds=median(spent for _, spent in measured),
            )
            for way, measured in found.items()
        ),
    )


def _replica(world: MariaDbWorld, threads: int, is_checked: bool) -> tuple[float, float]:
    with world.fresh_replica(threads) as session:
        before = processor_seconds(world.directory)
        seconds = world.catch_up(session)
        spent = processor_seconds(world.directory) - before
        if is_checked:
            world.require_equal(world.replica)
        return seconds, spent


def _ours(world: MariaDbWorld, spark: SparkAccess, channels: int, is_checked: bool) -> tuple[float, float]:
    with world.fresh_target() as database:
        meter = partial(processor_seconds, world.directory.parent)
        mine = replace(world.world, log=world.pipeline)
        run = measure_from_log(mine, database, channels, spark, meter=meter)
        if is_checked:
            world.require_equal(world.target)
        return run.seconds, run.processor_seconds
