"""RouterOperator: the router runtime's verb `plan`, called in process."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context

from airflow_parallel_apply.operators.lease import LeaseTask


class RouterOperator(LeaseTask):
    """Turns the captured log into epochs, durably, at the target. Returns a summary of the plan."""

    def work(self, context: Context) -> dict[str, Any]:
        del context
        from airflow_parallel_apply.router.plan import plan

        settings = self.settings()
        report = plan(settings.config, settings.target)
        self.log.info("%s", report)
        return report.to_json()
