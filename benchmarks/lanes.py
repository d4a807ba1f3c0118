"""Ours: the steps of a run as Airflow's tasks call them, each lane in a process of its own."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import import_module
from itertools import count
from time import monotonic
from typing import Final

from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.apply.report import LaneReport
from airflow_parallel_apply.pipeline.apply.signals import LaneSignals
from airflow_parallel_apply.pipeline.apply.stage import Stage
from airflow_parallel_apply.pipeline.config import Consistency, Endpoint, EpochProtocol, PipelineConfig
from airflow_parallel_apply.router.plan import plan
from airflow_parallel_apply.spark.session import ConnectAccess
from airflow_parallel_apply.spark.stage import open_stage
from benchmarks.python_stage import PythonStage
from benchmarks.world import Database, World

_runs: Final = count()

_modules: Final[dict[str, None]] = {"pyspark.sql.connect.session": None}
"""The modules that lanes have imported, in their order: those that follow begin with them."""


class StageKind(StrEnum):
    """The reader of the log."""

    SPARK = "spark"
    """The product: Spark scans, filters, sorts."""
    PYTHON = "python"
    """Python that merely runs inside a Spark task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkAccess:
    """A Spark Connect server, and the session on it that all measurements share, its Python workers warm."""

    url: str
    session_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesRun:
    """One measured run. `seconds`: from the start of the lanes (with capture: of the run) until all is drained;
    `processor_seconds`: those of the same time, by the caller's meter.
    """

    seconds: float
    phases: dict[str, float]
    """Sums over the lanes."""
    units: int
    processor_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    opened: run.OpenedRun
    config: PipelineConfig
    source: Endpoint
    target: Endpoint
    lane: int
    spark: SparkAccess
    kind: StageKind


def measure_from_log(
    world: World,
    database: Database,
    channels: int,
    spark: SparkAccess,
    kind: StageKind = StageKind.SPARK,
    consistency: Consistency = Consistency.CHANNEL,
    protocol: EpochProtocol = EpochProtocol.AUTO,
    meter: Callable[[], float] = lambda: 0.0,
) -> LanesRun:
    """The history is captured and planned; the clock runs from the start of the lanes. `meter`: processor seconds."""
    config = replace(world.log, channels=channels, consistency=consistency, epoch_protocol=protocol)
    with _lanes(channels) as lanes:
        opened = _open(world, config, database)
        began, before = monotonic(), meter()
        reports = lanes(_orders(world, config, database, opened, spark, kind))
        seconds, spent = monotonic() - began, meter() - before
    run.close_run(opened, config, database.endpoint, [report.to_json() for report in reports])
    return replace(_result(seconds, reports), processor_seconds=spent)


def measure_with_feeding(
    world: World,
    database: Database,
    config: PipelineConfig,
    spark: SparkAccess,
    meter: Callable[[], float] = lambda: 0.0,
) -> LanesRun:
    """The history is captured; the clock runs over the plan, which feeds the pipeline's store, open and lanes."""
    return _measured(world, database, config, spark, meter, lanes=config.lanes, opening="plan, feed, open")


def measure_with_capture(
    world: World,
    database: Database,
    fresh: PipelineConfig,
    channels: int,
    spark: SparkAccess,
    meter: Callable[[], float] = lambda: 0.0,
) -> LanesRun:
    """Nothing is captured; the clock runs over capture, plan, open and lanes."""
    config = replace(fresh, channels=channels)
    return _measured(world, database, config, spark, meter, lanes=channels, opening="first capture, plan, open")


def _measured(
    world: World,
    database: Database,
    config: PipelineConfig,
    spark: SparkAccess,
    meter: Callable[[], float],
    *,
    lanes: int,
    opening: str,
) -> LanesRun:
    """A whole run. `opening`: the name of the phase before its lanes."""
    with _lanes(lanes) as work:
        began, before = monotonic(), meter()
        opened = _open(world, config, database)
        seconds_before = monotonic() - began
        reports = work(_orders(world, config, database, opened, spark, StageKind.SPARK))
        seconds, spent = monotonic() - began, meter() - before
    run.close_run(opened, config, database.endpoint, [report.to_json() for report in reports])
    found = replace(_result(seconds, reports), processor_seconds=spent)
    return replace(found, phases={opening: seconds_before, **found.phases})


def _open(world: World, config: PipelineConfig, database: Database) -> run.OpenedRun:
    run_id = f"bench {next(_runs)}"
    run.capture(
        config,
        world.source,
        database.endpoint,
        run_id=run_id,
        until="",
        cancelled=lambda: False,
        report=_tell_nobody,
    )
    plan(config, database.endpoint)
    return run.open_run(config, world.source, database.endpoint, owner=run_id, run_id=run_id)


def _orders(
    world: World, config: PipelineConfig, database: Database, opened: run.OpenedRun, spark: SparkAccess, kind: StageKind
) -> list[_Order]:
    return [
        _Order(
            opened=opened,
            config=config,
            source=world.source,
            target=database.endpoint,
            lane=lane,
            spark=spark,
            kind=kind,
        )
        for lane in range(opened.lanes)
    ]


class _Lanes:
    """Processes that have imported what a lane imports, and wait."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def __call__(self, orders: list[_Order]) -> list[LaneReport]:
        found = [lane.result() for lane in [self._pool.submit(_run_lane, order) for order in orders]]
        _modules.update(dict.fromkeys(name for _, imported in found for name in imported))
        return [report for report, _ in found]


@contextmanager
def _lanes(lane_count: int) -> Iterator[_Lanes]:
    # New processes for each measurement: a lane verifies each segment's checksum once in its life.
    started = multiprocessing.get_context("spawn").Barrier(lane_count + 1)
    with ProcessPoolExecutor(
        max_workers=lane_count,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=started.wait,
    ) as pool:
        waiting = [pool.submit(_import_all, tuple(_modules)) for _ in range(lane_count)]
        started.wait()
        for one in waiting:
            one.result()
        yield _Lanes(pool)


def _import_all(names: Sequence[str]) -> None:
    for name in names:
        # Some are of other names than they are imported by.
        with suppress(ImportError):
            import_module(name)


def _run_lane(order: _Order) -> tuple[LaneReport, tuple[str, ...]]:
    """The report, and the modules that were imported."""
    stage = _stage(order)
    try:
        report = run.apply(
            order.opened,
            order.config,
            order.source,
            order.target,
            lane=order.lane,
            stage=stage,
            signals=LaneSignals(stop_requested=lambda: False, cancelled=lambda: False, report=_tell_nobody),
        )
    finally:
        stage.close()
    return report, tuple(sys.modules)


def _tell_nobody(progress: object) -> None:
    """Nobody watches a measurement."""
    del progress


def _stage(order: _Order) -> Stage:
    kind = open_stage if order.kind is StageKind.SPARK else PythonStage
    access = ConnectAccess(url=order.spark.url, session_id=order.spark.session_id)
    return kind(access=access, config=order.config, target=order.target)


def _result(seconds: float, reports: list[LaneReport]) -> LanesRun:
    phases: dict[str, float] = {}
    for report in reports:
        for phase, spent in report.seconds.items():
            phases[phase] = phases.get(phase, 0.0) + spent
    return LanesRun(seconds=seconds, phases=phases, units=sum(report.units for report in reports))
