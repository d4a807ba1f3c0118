"""`python -m benchmarks workloads`: histories of many shapes, each on servers of its own.

For each: PostgreSQL's own replication; ours from the log under each consistency and protocol, with two channels; ours
including capture; and for `uniform` the same target five milliseconds away, with one channel. Kinds take turns, in
another order each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final

from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from benchmarks.delay import far_away
from benchmarks.histories import histories
from benchmarks.lanes import LanesRun, SparkAccess, measure_from_log, measure_with_capture
from benchmarks.memory import PeakMemory
from benchmarks.native import measure_native
from benchmarks.processors import Meter
from benchmarks.record import Measured, Workload
from benchmarks.settings import BenchSettings
from benchmarks.suite import warm_spark
from benchmarks.world import Database, World, build_world

CHANNELS: Final = 2
FAR_MILLISECONDS: Final = 5.0
_FAR_HISTORY: Final = "uniform"


class Way(StrEnum):
    """One way to follow a history."""

    NATIVE = "native"
    """PostgreSQL's own replication."""
    CHANNEL = "channel"
    LEADER_MERGE = "leader_merge"
    TWO_PHASE = "two_phase"
    AUTO = "auto"
    CAPTURE = "capture"
    """Including capture, under `channel`."""
    NEAR = "near"
    """With one channel."""
    FAR = "far"
    """The same, with the target some milliseconds away."""

    @property
    def protocol(self) -> EpochProtocol | None:
        """That of `epoch`; None of other ways."""
        return EpochProtocol(self.value) if self in _IN_EPOCHS else None


_IN_EPOCHS: Final = (Way.LEADER_MERGE, Way.TWO_PHASE, Way.AUTO)


def chosen_ways(text: str) -> tuple[Way, ...]:
    """Parse a list with commas. Errors: `ConfigurationError`."""
    try:
        return tuple(Way(one.strip()) for one in text.split(","))
    except ValueError as error:
        raise ConfigurationError(
            f"{error}", op="bench", hint=f"--ways takes some of {', '.join(Way)}, with commas between them."
        ) from error


def run_workloads(
    directory: Path,
    settings: BenchSettings,
    names: Sequence[str],
    ways: Sequence[Way],
    say: Callable[[str], None],
) -> Iterator[Workload]:
    """Each history by itself, with servers below `directory`. Errors: `ConfigurationError` for an unknown name."""
    known = histories(settings.workload_changes)
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ConfigurationError(
            f"no such workload: {', '.join(unknown)}", op="bench", hint=f"One of {', '.join(known)}."
        )
    if not names:
        return
    with warm_spark(directory, CHANNELS) as spark:
        for name in names:
            say(f"{name}: {known[name].name}")
            chosen = [way for way in ways if way not in (Way.NEAR, Way.FAR) or name == _FAR_HISTORY]
            captures = Way.CAPTURE in chosen
            with build_world(directory / name, known[name], repeats=settings.repeats, captures=captures) as world:
                yield _measure(name, world, spark, chosen, settings.repeats, say)


def _measure(
    name: str, world: World, spark: SparkAccess, ways: Sequence[Way], repeats: int, say: Callable[[str], None]
) -> Workload:
    found: dict[Way, list[Measured]] = {way: [] for way in ways}
    peak = PeakMemory()
    with world.database() as database:
        measure_from_log(world, database, CHANNELS, spark)
        world.require_equal(database)
    for repeat in range(repeats):
        # What runs behind the same other each time may get its leftovers: dirty pages, vacuum.
        turn = repeat % len(ways)
        for way in (*ways[turn:], *ways[:turn]):
            with peak.watching():
                measured = _measure_once(world, way, repeat, spark)
            found[way].append(measured)
            say(f"{way}: {measured.seconds:.2f} s, {measured.processor_seconds:.2f} of processors")
    return Workload(
        name=name,
        title=world.history.name,
        changes=world.history.changes,
        ways={way.value: tuple(measured) for way, measured in found.items()},
        peak_bytes=peak.bytes_by_kind,
    )


def _measure_once(world: World, way: Way, repeat: int, spark: SparkAccess) -> Measured:
    """In a fresh database, which is compared with the source the first time."""
    around, inside = Meter(world.directory.parent), Meter(world.directory.parent)
    with world.database(world.fresh[repeat] if way is Way.CAPTURE else None) as database:
        before = around()
        run = _way(world, way, repeat, spark, inside)(database)
        spent = around() - before
        if repeat == 0:
            world.require_equal(database)
    if isinstance(run, LanesRun):
        return Measured(
            seconds=run.seconds,
            processor_seconds=run.processor_seconds,
            processors=inside.spent,
            units=run.units,
            phases=run.phases,
        )
    return Measured(seconds=run, processor_seconds=spent, processors=around.spent)


def _way(
    world: World, way: Way, repeat: int, spark: SparkAccess, meter: Callable[[], float]
) -> Callable[[Database], LanesRun | float]:
    from_log = partial(measure_from_log, world, channels=CHANNELS, spark=spark, meter=meter)
    match way:
        case Way.NATIVE:
            return partial(measure_native, world, slot=world.slots[repeat])
        case Way.CAPTURE:
            return partial(
                measure_with_capture,
                world,
                fresh=world.fresh[repeat],
                channels=CHANNELS,
                spark=spark,
                meter=meter,
            )
        case Way.NEAR:
            return partial(from_log, channels=1)
        case Way.FAR:
            return partial(_measure_far, world, spark=spark, meter=meter)
        case _ if way.protocol is not None:
            return partial(from_log, consistency=Consistency.EPOCH, protocol=way.protocol)
        case _:
            return from_log


def _measure_far(world: World, database: Database, spark: SparkAccess, meter: Callable[[], float]) -> LanesRun:
    with far_away(database.dsn, FAR_MILLISECONDS) as dsn:
        return measure_from_log(world, replace(database, dsn=dsn), 1, spark, meter=meter)
