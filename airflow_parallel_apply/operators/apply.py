"""SparkApplyOperator: one lane of apply, mapped over what `open` returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.xcom import XCom

from airflow_parallel_apply.operators.coordinator import OPENED_KEY, STOP_KEY, Action
from airflow_parallel_apply.operators.links import SPARK_LINK_KEY, SparkLink
from airflow_parallel_apply.operators.metrics import LaneMetrics
from airflow_parallel_apply.operators.spark import LaneRunner, lane_runner
from airflow_parallel_apply.operators.stop import StopMarker, means_stop
from airflow_parallel_apply.pipeline.errors import OwnershipLost
from airflow_parallel_apply.task import PipelineTask

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.apply.report import LaneReport

_LINE_SECONDS: Final = 5.0


class SparkApplyOperator(PipelineTask):
    """Claims channels and runs their Spark apply stage until every channel has met its stop marker.

    Returns the lane's acknowledgement: channels served, units, rows, seconds by phase, stop seqno. A killed lane
    cancels its Spark job, releases what it holds, and fails.

    :param lane: number of this lane, from 0
    :param lanes: number of lanes in the run
    :param open_task_id: id of the task that opened the run
    """

    template_fields: Sequence[str] = (*PipelineTask.template_fields, "open_task_id", "lane")

    operator_extra_links = (SparkLink(),)

    spark_ui: str | None = None
    _runner: LaneRunner | None = None
    _next_line = 0.0

    def __init__(
        self,
        *,
        lane: int = 0,
        lanes: int = 1,
        open_task_id: str = Action.OPEN,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.lane = lane
        self.lanes = lanes
        self.open_task_id = str(open_task_id)

    def execute(self, context: Context) -> dict[str, Any]:
        return self.guarded(context, lambda: self._apply(context))

    def cancel(self) -> None:
        if self._runner is not None:
            self._runner.cancel()

    def _apply(self, context: Context) -> dict[str, Any]:
        from airflow_parallel_apply.pipeline.apply.signals import LaneSignals
        from airflow_parallel_apply.pipeline.run import OpenedRun

        settings = self.settings()
        ti = context["ti"]

        def from_open(key: str) -> Any:
            return ti.xcom_pull(task_ids=self.open_task_id, key=key, map_indexes=-1)

        def stop_marker() -> Any:
            try:
                return from_open(STOP_KEY)
            except AirflowRuntimeError as error:
                self.log.warning("the stop marker cannot be read now, asking again: %s", error)
                return None

        value = from_open(OPENED_KEY)
        if value is None:
            raise OwnershipLost(
                f"the task {self.open_task_id} has left nothing for this lane",
                pipeline=settings.config.pipeline,
                hint=f"Clear {self.open_task_id} with everything downstream of it.",
            )
        opened = OpenedRun.from_json(value)
        metrics = LaneMetrics(settings.config.pipeline)

        def tell(report: LaneReport) -> None:
            metrics.publish(report)
            self._log_report(report)

        signals = LaneSignals(
            stop_requested=StopMarker(stop_marker).requested,
            cancelled=lambda: self.killed,
            report=tell,
        )

        def show_ui(url: str) -> None:
            self.spark_ui = url
            ti.xcom_push(SPARK_LINK_KEY, url)

        self._runner = lane_runner(settings, opened, int(self.lane))
        report = self._runner.run(signals, show_ui)
        metrics.publish(report)
        self.log.info("%s, every channel is stopped", _line(report))
        if report.stop_asked:
            self._show_stop(context, {"stop": True, "seqno": report.stop_seqno}, stop_marker)
        return report.to_json()

    def _show_stop(self, context: Context, marker: dict[str, Any], shown: Callable[[], object]) -> None:
        """`open`'s marker says so too, whoever asked: the command `parallel-apply stop` writes to the queue (law 8)."""
        ti = context["ti"]
        try:
            XCom.set(STOP_KEY, marker, dag_id=ti.dag_id, task_id=self.open_task_id, run_id=ti.run_id)
        except AirflowRuntimeError as error:
            # Lanes end together, and of those that write it at the same moment the server refuses all but one.
            if not means_stop(shown()):
                self.log.warning("the stop marker cannot be written: %s", error)

    def _log_report(self, report: LaneReport) -> None:
        """Every few seconds: short units come many a second."""
        now = time.monotonic()
        if now >= self._next_line:
            self._next_line = now + _LINE_SECONDS
            self.log.info("%s", _line(report))


def _line(report: LaneReport) -> str:
    channels = ", ".join(map(str, sorted(report.channels))) or "none"
    units = "1 unit" if report.units == 1 else f"{report.units:,} units"
    return f"lane {report.lane}: {units}, {report.rows:,} rows, channels {channels}"
