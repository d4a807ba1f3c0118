"""The measurements, their order and number. Kinds take turns, so that a slow minute of the machine hits all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from uuid import uuid4

from airflow_parallel_apply.pipeline.config import Consistency, PipelineConfig
from airflow_parallel_apply.spark.server import connect_server
from airflow_parallel_apply.spark.session import close_session, open_session, release_session, warm_up
from benchmarks.histories import History, tpcb
from benchmarks.inside import measure_inside
from benchmarks.lanes import LanesRun, SparkAccess, StageKind, measure_from_log, measure_with_capture
from benchmarks.limit import measure_copy, net_tables
from benchmarks.native import measure_native
from benchmarks.settings import BenchSettings
from benchmarks.world import Database, World, build_world, cpu_count

NATIVE = "PostgreSQL's own logical replication"
LIMIT = "COPY of the net rows (the limit)"


@dataclass(slots=True, kw_only=True)
class Kind:
    """One line of the result."""

    name: str
    seconds: list[float] = field(default_factory=list)
    runs: list[LanesRun] = field(default_factory=list)

    @property
    def median_seconds(self) -> float:
        """The median of all measurements."""
        return median(self.seconds)

    @property
    def median_run(self) -> LanesRun | None:
        """The one that lies in the middle, with its phases."""
        ordered = sorted(self.runs, key=lambda run: run.seconds)
        return ordered[(len(ordered) - 1) // 2] if ordered else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All that the report says."""

    settings: BenchSettings
    history: History
    cores: int
    durability: dict[str, dict[str, str]]
    kinds: tuple[Kind, ...]
    net_rows: int
    capture_seconds: float
    inside: dict[str, float]


def run_suite(directory: Path, settings: BenchSettings, say: Callable[[str], None]) -> Result:
    """Everything, with the servers in `directory`."""
    history = tpcb(transactions=settings.transactions, scale=settings.scale)
    say(f"two servers, a history of {history.name}")
    with (
        build_world(directory, history, repeats=settings.repeats) as world,
        warm_spark(directory, max(settings.channels)) as spark,
    ):
        kinds = tuple(_measure(world, settings, spark, say))
        say("inside one Spark job")
        with world.database() as database:
            inside = measure_inside(world, database, spark)
        return Result(
            settings=settings,
            history=history,
            cores=cpu_count(),
            durability=world.durability(),
            kinds=kinds,
            net_rows=sum(table.row_count for table in net_tables(world)),
            capture_seconds=world.capture_seconds,
            inside=inside,
        )


@contextmanager
def warm_spark(directory: Path, workers: int) -> Iterator[SparkAccess]:
    """A server of our own, and a session whose Python workers have started."""
    with connect_server(directory=directory / "spark") as lease:
        access = SparkAccess(url=lease.url, session_id=str(uuid4()))
        session = open_session(access.url, access.session_id)
        try:
            warm_up(session, workers)
            yield access
        finally:
            close_session(session)
            release_session(access.url, access.session_id)


def _measure(world: World, settings: BenchSettings, spark: SparkAccess, say: Callable[[str], None]) -> Iterator[Kind]:
    native, limit = Kind(name=NATIVE), Kind(name=LIMIT)
    from_log = {channels: Kind(name=_ours(channels)) for channels in settings.channels}
    best = 2 if 2 in from_log else settings.channels[-1]
    in_python = Kind(name=f"{_ours(best)}, but Python reads the log inside Spark")
    in_epochs = {
        channels: Kind(name=f"{_ours(channels)}, consistency epoch") for channels in settings.channels if channels > 1
    }
    with_capture = Kind(name=f"ours including capture, {_channels(best)}")
    new = Kind(name=f"{_ours(best)}, the first runs of a new Spark server")
    tables = net_tables(world)

    for repeat in range(settings.warm_ups):
        turn = Turn(world=world, say=say, check=repeat == 0)
        turn.measure(new, partial(measure_from_log, world, channels=best, spark=spark))
    for repeat, (slot, fresh) in enumerate(zip(world.slots, world.fresh, strict=True)):
        turn = Turn(world=world, say=say, check=repeat == 0)
        turn.measure(native, partial(measure_native, world, slot=slot))
        for channels, kind in from_log.items():
            turn.measure(kind, partial(measure_from_log, world, channels=channels, spark=spark))
        for channels, kind in in_epochs.items():
            turn.measure(
                kind,
                partial(measure_from_log, world, channels=channels, spark=spark, consistency=Consistency.EPOCH),
            )
        turn.measure(in_python, partial(measure_from_log, world, channels=best, spark=spark, kind=StageKind.PYTHON))
        turn.measure(with_capture, partial(measure_with_capture, world, fresh=fresh, channels=best, spark=spark), fresh)
        replace(turn, check=False).measure(limit, partial(measure_copy, tables=tables))
    yield from (native, *from_log.values(), *in_epochs.values(), new, with_capture, in_python, limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """`check`: compare source and target afterwards."""

    world: World
    say: Callable[[str], None]
    check: bool

    def measure(
        self, kind: Kind, measure: Callable[[Database], LanesRun | float], config: PipelineConfig | None = None
    ) -> None:
        """Once, in a fresh database that is prepared for this pipeline."""
        with self.world.database(config) as database:
            found = measure(database)
            if self.check:
                self.world.require_equal(database)
        if isinstance(found, LanesRun):
            kind.runs.append(found)
        kind.seconds.append(found.seconds if isinstance(found, LanesRun) else found)
        self.say(f"{kind.name}: {kind.seconds[-1]:.2f} s")


def _ours(channels: int) -> str:
    return f"ours from the log, {_channels(channels)}"


def _channels(count: int) -> str:
    return "1 channel" if count == 1 else f"{count} channels"
