"""Measures catching up into MariaDB: its own replica with 0 to 8 parallel threads, and ours from the log.

Each begins stopped, with the whole history at hand: the replica in its relay log, ours in the log, captured and
planned. The clock runs until the last transaction is committed. Replica and target have the same settings, and both
sync each commit. Kinds take turns; each is compared with the source once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
class CatchUp:
    """One way to catch up with one history, and each of its measurements. `processor_seconds`: their median."""

    what: str
    is_ours: bool
    seconds: tuple[float, ...]
    processor_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUps:
    """All ways of one history. `durability`: of the replica, and of ours."""

    history: str
    changes: int
    durability: tuple[str, str]
    ways: tuple[CatchUp, ...]


def measure_catch_ups(
    directory: Path, settings: BenchSettings, names: Sequence[str], say: Callable[[str], None]
) -> list[CatchUps]:
    """Each history by itself, BENCH_WORKLOAD_CHANGES changes of it, BENCH_REPEATS times."""
    known = histories(settings.workload_changes)
    with warm_spark(directory, max(CHANNELS)) as spark:
        found = []
        for name in names:
            say(f"{name}: {known[name].name}")
            with build_mariadb_world(directory / name, known[name]) as world:
                found.append(_measure(world, spark, settings.repeats, say))
        return found


def print_catch_ups(console: Console, found: CatchUps) -> None:
    """A table, and the ratio of ours to the best replica."""
    console.print(f"{found.history}: {found.changes:,} changes", highlight=False)
    for side, told in zip(("replica", "ours"), found.durability, strict=True):
        console.print(f"{side}: {told}", highlight=False)
    best = min(median(way.seconds) for way in found.ways if not way.is_ours)
    table = Table(box=None)
    for heading in ("what", "seconds", "changes/s", "× best replica", "cpu s", "all"):
        table.add_column(heading, justify="left" if heading in ("what", "all") else "right")
    for way in found.ways:
        seconds = median(way.seconds)
        table.add_row(
            way.what,
            f"{seconds:.2f}",
            f"{found.changes / seconds:,.0f}",
            f"{best / seconds:.2f}",
            f"{way.processor_seconds:.2f}",
            " ".join(f"{one:.2f}" for one in way.seconds),
        )
    console.print(table)


def _measure(world: MariaDbWorld, spark: SparkAccess, repeats: int, say: Callable[[str], None]) -> CatchUps:
    ways: dict[str, Callable[[bool], tuple[float, float]]] = {
        f"MariaDB's replica, {threads} parallel threads": partial(_replica, world, threads) for threads in THREADS
    }
    ours = {_named(channels): partial(_ours, world, spark, channels) for channels in CHANNELS}
    for _ in range(_WARM_UPS):
        _ours(world, spark, 2, False)
    found: dict[str, list[tuple[float, float]]] = {what: [] for what in (*ways, *ours)}
    for repeat in range(repeats):
        for what, way in (ways | ours).items():
            found[what].append(way(repeat == 0))
            say(f"{what}: {found[what][-1][0]:.2f} s, {found[what][-1][1]:.2f} of processors")
    with world.replica:
        of_replica = world.durability(world.replica)
    with world.target:
        of_ours = world.durability(world.target)
    return CatchUps(
        history=world.world.history.name,
        changes=world.world.history.changes,
        durability=(of_replica, of_ours),
        ways=tuple(
            CatchUp(
                what=what,
                is_ours=what in ours,
                seconds=tuple(seconds for seconds, _ in measured),
                processor_seconds=median(spent for _, spent in measured),
            )
            for what, measured in found.items()
        ),
    )


def _named(channels: int) -> str:
    return f"ours from the log, {channels} channel{'s' if channels > 1 else ''}"


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
