"""CaptureOperator: source → log, durable before the source lets go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context

from airflow_parallel_apply.operators.fence import FencedTask
from airflow_parallel_apply.operators.spark import begin
from airflow_parallel_apply.task import run_identity

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.source.protocol import CaptureStep


class CaptureOperator(FencedTask):
    """Freeze the run's bound and capture a first part of the backlog; the lanes capture what is left.

    The first run of a pipeline creates publication, slot and log, and says so. Returns what was captured.

    :param until: LSN where the run ends; empty: the end of the run's data interval, or, where it has none or an empty
        one, everything committed at the source when the run first opens
    """

    template_fields: Sequence[str] = (*FencedTask.template_fields, "until")

    def __init__(self, *, until: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.until = until

    def work(self, context: Context) -> dict[str, Any]:
        from airflow_parallel_apply.pipeline.run import capture

        told = self.settings()
        identity = run_identity(context)
        begin(told.spark)
        report = capture(
            told.config,
            told.source,
            told.target,
            run_id=identity.run_id,
            until=self.until,
            interval=identity.interval,
            cancelled=lambda: self.killed,
            report=self._log_step,
        )
        for line in report.prepared.created:
            self.log.info("created: %s", line)
        return report.to_json()

    def _log_step(self, step: CaptureStep) -> None:
        self.log.info(
            "captured %s changes of %s transactions in %.1f s, up to seqno %s",
            f"{step.row_count:,}",
            f"{step.transaction_count:,}",
            step.seconds,
            step.last_seqno,
        )
