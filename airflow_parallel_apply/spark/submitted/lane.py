"""A lane in the driver of an application of its own: both sides of it.

It claims nothing before Spark has given it an executor, and gives back what it holds when it has none any more: else
two applications on a full cluster could wait for each other, one for the other's core, one for the other's channel.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from airflow_parallel_apply.pipeline.apply.report import LaneReport
from airflow_parallel_apply.pipeline.apply.signals import Cancelled, LaneSignals
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.run import apply, waiting_lane
from airflow_parallel_apply.spark.classic import ClassicAccess, executor_count
from airflow_parallel_apply.spark.cluster import Cluster
from airflow_parallel_apply.spark.stage import SparkStage, open_stage
from airflow_parallel_apply.spark.submitted.executors import await_executor
from airflow_parallel_apply.spark.submitted.link import TaskLink
from airflow_parallel_apply.spark.submitted.messages import Done, Failed, LaneWork, Reported, Signal, Started
from airflow_parallel_apply.spark.submitted.process import DriverProcess

_PATIENCE_SECONDS: Final = 15.0
"""How long a job may be without any executor: a cluster that has room replaces one within seconds."""
_TICK_SECONDS: Final = 1.0
_CORES: Final = 1
"""Below two million rows a unit is one task."""


class NoExecutors(ParallelApplyError):
    """The application has no executor any more: the lane gives back its claims, and waits for one without them."""


class SubmittedLane:
    """The task's side: submits the application, and passes on what either side has to say."""

    def __init__(self, cluster: Cluster, work: LaneWork) -> None:
        self._cluster = cluster
        self._work = work
        self._process: DriverProcess | None = None
        self._is_cancelled = False

    def run(self, signals: LaneSignals, show_ui: Callable[[str], None]) -> LaneReport:
        """The lane, to its end. Errors: those of `pipeline.run.apply`; `Unavailable` when the application ended."""
        name = f"parallel-apply {self._work.config.pipeline} lane {self._work.lane}"
        process = self._process = DriverProcess(self._cluster, name=name, cores=_CORES)
        try:
            # It may have come before there was a process to tell.
            if self._is_cancelled:
                process.cancel()
            process.start(self._work)
            return self._attend(process, signals, show_ui)
        finally:
            process.close()

    def cancel(self) -> None:
        """End it, what it holds given back; within four seconds."""
        self._is_cancelled = True
        if self._process is not None:
            self._process.cancel()

    def _attend(self, process: DriverProcess, signals: LaneSignals, show_ui: Callable[[str], None]) -> LaneReport:
        is_stop_sent = False
        while True:
            if not is_stop_sent and signals.stop_requested():
                process.send(Signal.STOP)
                is_stop_sent = True
            match process.receive(_TICK_SECONDS):
                case Started(ui_url=str(url)):
                    show_ui(url)
                case Reported(report=report):
                    signals.report(report)
                case Done(result=LaneReport() as report):
                    return report
                case Failed(error=error):
                    raise error


def run_lane(work: LaneWork, link: TaskLink, access: ClassicAccess) -> LaneReport:
    """Run the lane until every channel is stopped, as `pipeline.run.apply` says."""
    report = LaneReport(lane=work.lane, generation=work.opened.generation)
    stage = open_stage(access=access, config=work.config, target=work.target)
    link.on_cancel(stage.cancel)
    signals = LaneSignals(
        stop_requested=lambda: link.stop_requested,
        cancelled=lambda: link.cancelled,
        # A copy, since the capture thread writes into it, too.
        report=lambda report: link.send(Reported(report=replace(report, seconds=dict(report.seconds)))),
    )
    threading.Thread(target=_watch, args=(stage,), name="watch executors", daemon=True).start()
    while True:
        _wait(work, link, access)
        try:
            return apply(
                work.opened,
                work.config,
                work.source,
                work.target,
                queue=work.queue,
                lane=work.lane,
                stage=stage,
                signals=signals,
                report=report,
            )
        except NoExecutors:
            report.retries += 1


def _wait(work: LaneWork, link: TaskLink, access: ClassicAccess) -> None:
    """For an executor, or for the run to need none any more."""
    with waiting_lane(work.opened, work.config, work.target, queue=work.queue) as is_drained:
        await_executor(access, link, work.config.log_url, work.target, enough=is_drained)
    if link.cancelled:
        raise Cancelled("the lane was cancelled", op="apply", pipeline=work.config.pipeline)


def _watch(stage: SparkStage) -> None:
    lonely_since: float | None = None
    while True:
        time.sleep(_TICK_SECONDS)
        try:
            lonely = stage.is_busy and executor_count() < 1
        except ParallelApplyError:
            # Between two contexts.
            continue
        now = time.monotonic()
        lonely_since = (lonely_since or now) if lonely else None
        if lonely_since is not None and now - lonely_since > _PATIENCE_SECONDS:
            stage.interrupt(lambda: NoExecutors("the application has no executor any more", op="stage"))
            lonely_since = None
