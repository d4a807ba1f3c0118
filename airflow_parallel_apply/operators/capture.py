"""CaptureOperator: source → log, durable before the source lets go."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Context

from airflow_parallel_apply.operators.lease import LeaseTask
from airflow_parallel_apply.operators.spark import begin
from airflow_parallel_apply.spark.endpoint import copier_on
from airflow_parallel_apply.task import run_identity

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.capture.values import CaptureStep
    from airflow_parallel_apply.pipeline.copy.protocol import Copier
    from airflow_parallel_apply.pipeline.model.copy_progress import CopyProgress

RUN_KEY: Final = "run"
"""XCom: the id under which the run's bounds are frozen."""

_LINE_SECONDS: Final = 5.0


class CaptureOperator(LeaseTask):
    """Freezes the run's bound and captures a first part of the backlog; the lanes capture the rest.

    The first run of a pipeline creates publication, slot and log, copies the existing rows (`start`), and logs what it
    created. If it is killed meanwhile, it interrupts the copy, and the next try begins the copy anew. Returns what was
    captured.

    :param until: offset at which the run ends, in the source's form (an LSN, such as 0/16B3748); empty: the end of the
        run's data interval, or, if it has none or an empty one, everything committed at the source when the run first
        opens
    """

    template_fields: Sequence[str] = (*LeaseTask.template_fields, "until")

    _copier: Copier | None = None
    _next_line = 0.0

    def __init__(self, *, until: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.until = until

    def work(self, context: Context) -> dict[str, Any]:
        from airflow_parallel_apply.pipeline.copy.protocol import Copying
        from airflow_parallel_apply.pipeline.run import capture

        settings = self.settings()
        identity = run_identity(context)
        context["ti"].xcom_push(RUN_KEY, identity.run_id)
        begin(settings.spark)
        with copier_on(settings.spark, settings.config, settings.source, settings.target) as copying:
            self._copier = copying
            report = capture(
                settings.config,
                settings.source,
                settings.target,
                queue=settings.queue,
                run_id=identity.run_id,
                until=self.until,
                interval=identity.interval,
                cancelled=lambda: self.killed,
                report=self._log_step,
                copying=Copying(copier=copying, report=self._log_copy, cancelled=lambda: self.killed),
            )
        for line in report.prepared.created:
            self.log.info("%s", line)
        return report.to_json()

    def cancel(self) -> None:
        if self._copier is not None:
            self._copier.cancel()

    def _log_copy(self, progress: CopyProgress) -> None:
        """Every few seconds: a copy may take hours."""
        now = time.monotonic()
        if now >= self._next_line or progress.phase != "copying":
            self._next_line = now + _LINE_SECONDS
            self.log.info("initial copy: %s", progress)

    def _log_step(self, step: CaptureStep) -> None:
        self.log.info(
            "captured %s changes of %s transactions in %.1f s, up to seqno %s",
            f"{step.row_count:,}",
            f"{step.transaction_count:,}",
            step.seconds,
            step.last_seqno,
        )
