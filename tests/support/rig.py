"""A pipeline between two real databases, run without Airflow: the same steps, lanes as threads."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import psycopg

from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.apply.signals import LaneSignals
from airflow_parallel_apply.pipeline.apply.stage import Stage
from airflow_parallel_apply.pipeline.capture.values import Prepared
from airflow_parallel_apply.pipeline.compare import Comparison, compare
from airflow_parallel_apply.pipeline.config import DdlPolicy, Endpoint, PipelineConfig, QueueEndpoint
from airflow_parallel_apply.pipeline.copy.protocol import Copier, Copying
from airflow_parallel_apply.pipeline.errors import FatalError
from airflow_parallel_apply.pipeline.model.copy_progress import CopyProgress
from airflow_parallel_apply.pipeline.model.interval import Interval
from airflow_parallel_apply.router.plan import plan
from tests.support.ddl_messages import ddl, install
from tests.support.local_copier import LocalCopier
from tests.support.local_stage import LocalStage

_runs = count()


@dataclass(frozen=True, kw_only=True)
class Rig:
    """One pipeline. `stage` makes a lane's stage, `copier` an initial copy's; the defaults do without Spark."""

    config: PipelineConfig
    source_dsn: str
    target_dsn: str
    stage: Callable[[run.OpenedRun], Stage] | None = None
    copier: Callable[[Rig], Copier] | None = None
    queue: QueueEndpoint | None = None
    ledger_dsn: str | None = None
    """None: the ledger is in the target's database."""

    @property
    def source(self) -> Endpoint:
        return Endpoint(conn_id="source", url=self.source_dsn)

    @property
    def target(self) -> Endpoint:
        ledger = None if self.ledger_dsn is None else Endpoint(conn_id="ledger", url=self.ledger_dsn)
        return Endpoint(conn_id="target", url=self.target_dsn, ledger=ledger)

    def having(self, **changes: Any) -> Rig:
        """The same pipeline with other parameters."""
        return replace(self, config=replace(self.config, **changes))

    def prepare(self) -> Prepared:
        return run.prepare(self.config, self.source, self.target, queue=self.queue, copying=self.copying())

    def copying(
        self,
        *,
        report: Callable[[CopyProgress], None] = lambda progress: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Copying:
        copier = self.copier(self) if self.copier else LocalCopier(source=self.source, target=self.target)
        return Copying(copier=copier, report=report, cancelled=cancelled)

    def both(self, *statements: str) -> None:
        """Run statements on source and target: how tables come into being on both sides."""
        for dsn in (self.source_dsn, self.target_dsn):
            execute(dsn, *statements)

    def write(self, *statements: str) -> None:
        """Each in a transaction of its own, at the source."""
        execute(self.source_dsn, *statements)

    def ddl(self, text: str) -> str:
        """The statement by which the source sends DDL; it can from now on."""
        install(self.source_dsn)
        return ddl(text)

    def transaction(self, *statements: str) -> None:
        """All in one transaction, at the source."""
        with psycopg.connect(self.source_dsn) as connection:
            for statement in statements:
                connection.execute(statement)

    def run(
        self,
        run_id: str | None = None,
        *,
        until: str = "",
        interval: Interval | None = None,
        catch_up: bool = False,
        lanes: int | None = None,
    ) -> run.ClosedRun:
        """A whole run: capture, route, open, lanes side by side, close."""
        run_id = run_id or f"run {next(_runs)}"
        self.capture(run_id, until=until, interval=interval)
        plan(self.config, self.target)
        opened = self.open(run_id, until=until, interval=interval, catch_up=catch_up)
        reports = self.apply(opened, lanes=lanes)
        return self.close(opened, reports)

    def open(
        self, run_id: str, *, until: str = "", interval: Interval | None = None, catch_up: bool = False
    ) -> run.OpenedRun:
        return run.open_run(
            self.config,
            self.source,
            self.target,
            queue=self.queue,
            owner=run_id,
            run_id=run_id,
            until=until,
            interval=interval,
            catch_up=catch_up,
        )

    def close(self, opened: run.OpenedRun, reports: Sequence[dict[str, Any]] = ()) -> run.ClosedRun:
        return run.close_run(opened, self.config, self.target, reports, queue=self.queue)

    def capture(self, run_id: str, *, until: str = "", interval: Interval | None = None) -> run.CaptureReport:
        return run.capture(
            self.config,
            self.source,
            self.target,
            queue=self.queue,
            run_id=run_id,
            until=until,
            interval=interval,
            cancelled=lambda: False,
            report=lambda step: None,
            copying=self.copying(),
        )

    def apply(
        self,
        opened: run.OpenedRun,
        *,
        lanes: int | None = None,
        stop_requested: Callable[[], bool] = lambda: False,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> list[dict[str, Any]]:
        count_ = min(lanes or opened.lanes, opened.lanes)
        with ThreadPoolExecutor(max_workers=max(count_, 1)) as pool:
            started = [pool.submit(self.lane, opened, lane, stop_requested, cancelled) for lane in range(count_)]
            return [lane.result().to_json() for lane in started]

    def lane(
        self,
        opened: run.OpenedRun,
        lane: int,
        stop_requested: Callable[[], bool] = lambda: False,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> run.LaneReport:
        stage = self.stage(opened) if self.stage else LocalStage(self.config.log_url, self.target, config=self.config)
        try:
            return run.apply(
                opened,
                self.config,
                self.source,
                self.target,
                queue=self.queue,
                lane=lane,
                stage=stage,
                signals=LaneSignals(stop_requested=stop_requested, cancelled=cancelled, report=lambda report: None),
            )
        finally:
            stage.close()

    def comparison(self) -> Comparison:
        """Compare all followed tables."""
        return compare(self.source, self.target, self.config.tables)

    def rows(self, query: str, *, side: str = "target") -> list[tuple[Any, ...]]:
        dsn = self.target_dsn if side == "target" else self.source_dsn
        with psycopg.connect(dsn) as connection:
            return connection.execute(query).fetchall()


def skip_as_the_hint_says(rig: Rig, error: FatalError) -> None:
    """A run with ddl=skip that ends where the hint says."""
    until = re.search(r"run once with ddl=skip and until=([0-9A-F]+/[0-9A-F]+)", str(error))
    assert until is not None, error
    rig.having(ddl=DdlPolicy.SKIP).run(until=until.group(1))


def execute(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)
