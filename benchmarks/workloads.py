"""`python -m benchmarks workloads`: histories of other shapes than TPC-B, each on servers of its own.

For each: PostgreSQL's own replication, ours from the log (under both consistencies) and including capture, with two
channels; what every kind of process took of memory; and for `uniform` the same target five milliseconds away, with one
channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from benchmarks.delay import far_away
from benchmarks.histories import History, histories
from benchmarks.lanes import LanesRun, SparkAccess, measure_from_log, measure_with_capture
from benchmarks.memory import PeakMemory
from benchmarks.native import measure_native
from benchmarks.settings import BenchSettings
from benchmarks.suite import NATIVE, Kind, Turn, warm_spark
from benchmarks.world import Database, World, build_world

CHANNELS: Final = 2
FAR_MILLISECONDS: Final = 5.0
_FAR_HISTORY: Final = "uniform"
_NEAR: Final = "ours from the log, 1 channel"
_FAR: Final = f"ours from the log, 1 channel, the target {FAR_MILLISECONDS:g} ms away"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One history's result."""

    history: History
    kinds: tuple[Kind, ...]
    peak: dict[str, int] = field(default_factory=dict)


def run_workloads(
    directory: Path, settings: BenchSettings, names: Sequence[str], say: Callable[[str], None]
) -> Iterator[Workload]:
    """Each history by itself, with servers below `directory`. Errors: `ConfigurationError` for an unknown name."""
    known = histories(settings.workload_changes)
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ConfigurationError(
            f"no such workload: {', '.join(unknown)}", op="bench", hint=f"One of {', '.join(known)}."
        )
    with warm_spark(directory, CHANNELS) as spark:
        for name in names or known:
            history = known[name]
            say(f"{name}: {history.name}")
            with build_world(directory / name, history, repeats=settings.repeats) as world:
                yield _measure(world, spark, say, is_far_too=name == _FAR_HISTORY)


def print_workload(console: Console, found: Workload) -> None:
    """Ratios, phases, memory."""
    native = found.kinds[0].median_seconds
    table = Table(title=found.history.name, title_justify="left", box=None)
    table.add_column("what")
    for name in ("changes/s", "× PostgreSQL", "all seconds"):
        table.add_column(name, justify="right")
    for kind in found.kinds:
        table.add_row(
            kind.name,
            f"{found.history.changes / kind.median_seconds:,.0f}",
            f"{native / kind.median_seconds:.2f}",
            " ".join(f"{one:.2f}" for one in kind.seconds),
        )
    console.print(table)
    for kind in found.kinds:
        if kind.median_run is not None:
            phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in kind.median_run.phases.items())
            console.print(
                f"  {kind.name}: {kind.median_run.units} units; seconds of all lanes: {phases}", highlight=False
            )
    peaks = ", ".join(f"{kind} {peak / 1e6:,.0f} MB" for kind, peak in sorted(found.peak.items()))
    console.print(f"  memory at most, of one process: {peaks}", highlight=False)


def _measure(world: World, spark: SparkAccess, say: Callable[[str], None], *, is_far_too: bool) -> Workload:
    native = Kind(name=NATIVE)
    from_log = Kind(name=f"ours from the log, {CHANNELS} channels")
    in_epochs = {
        protocol: Kind(name=f"{from_log.name}, consistency epoch, {protocol}")
        for protocol in (EpochProtocol.LEADER_MERGE, EpochProtocol.TWO_PHASE)
    }
    with_capture = Kind(name=f"ours including capture, {CHANNELS} channels")
    near, far = Kind(name=_NEAR), Kind(name=_FAR)
    peak = PeakMemory()
    with world.database() as database:
        measure_from_log(world, database, CHANNELS, spark)
        world.require_equal(database)
    for repeat, (slot, fresh) in enumerate(zip(world.slots, world.fresh, strict=True)):
        turn = Turn(world=world, say=say, check=repeat == 0)
        turn.measure(native, partial(measure_native, world, slot=slot))
        with peak.watching():
            turn.measure(from_log, partial(measure_from_log, world, channels=CHANNELS, spark=spark))
            for protocol, kind in in_epochs.items():
                in_this = partial(measure_from_log, consistency=Consistency.EPOCH, protocol=protocol)
                turn.measure(kind, partial(in_this, world, channels=CHANNELS, spark=spark))
            turn.measure(
                with_capture, partial(measure_with_capture, world, fresh=fresh, channels=CHANNELS, spark=spark), fresh
            )
        if is_far_too:
            turn.measure(near, partial(measure_from_log, world, channels=1, spark=spark))
            turn.measure(far, partial(_measure_far, world, spark=spark))
    kinds = (native, from_log, *in_epochs.values(), with_capture, *((near, far) if is_far_too else ()))
    return Workload(history=world.history, kinds=kinds, peak=peak.bytes_by_kind)


def _measure_far(world: World, database: Database, spark: SparkAccess) -> LanesRun:
    with far_away(database.dsn, FAR_MILLISECONDS) as dsn:
        return measure_from_log(world, replace(database, dsn=dsn), 1, spark)
