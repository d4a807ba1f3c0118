"""Tasks that need the pipeline's fence: while another live run owns it they wait deferred, never with a slot in hand.

::

    execute ── FenceBusy ──▶ deferred (FenceTrigger polls the target) ── free ──▶ resume ── FenceBusy ──▶ deferred …
                                                                     └─ deadline ──▶ failed, naming the owner

The deadline is set by the first refusal and travels with the trigger, so that losing the race for a free fence does
not wait anew.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final, NoReturn

import pendulum
from airflow.sdk import Context

from airflow_parallel_apply.pipeline.errors import ConfigurationError, FatalError, FenceBusy
from airflow_parallel_apply.task import PipelineTask, run_identity
from airflow_parallel_apply.triggers.fence import FenceTrigger

_GRACE: Final = timedelta(minutes=5)
"""The triggerer's own timeout comes after the trigger's deadline, for a trigger that answers nothing."""


class FencedTask(PipelineTask):
    """Base of the tasks that wait for the fence.

    :param fence_timeout: how long to wait while another run owns the pipeline
    """

    def __init__(self, *, fence_timeout: timedelta = timedelta(minutes=30), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fence_timeout = fence_timeout

    def work(self, context: Context) -> Any:
        """What the task does. Errors: `FenceBusy`, which is waited for; any other ends the task."""
        raise NotImplementedError

    def execute(self, context: Context) -> Any:
        return self._attempt(context, deadline=None)

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        """Go on after the trigger: with the fence free, or with the reason why not."""
        if event["status"] != "free":
            return self.guarded(context, lambda: self._refuse(event))
        return self._attempt(context, deadline=datetime.fromisoformat(event["deadline"]))

    def _attempt(self, context: Context, deadline: datetime | None) -> Any:
        busy: FenceBusy | None = None

        def once() -> Any:
            nonlocal busy
            try:
                return self.work(context)
            except FenceBusy as error:
                busy = error
                return None

        result = self.guarded(context, once)
        if busy is not None:
            self._wait(context, busy, deadline)
        return result

    def _wait(self, context: Context, busy: FenceBusy, deadline: datetime | None) -> NoReturn:
        now = pendulum.now("UTC")
        until = deadline or now + self.fence_timeout
        self.log.info("%s; waiting for it until %s", busy, until.isoformat(timespec="seconds"))
        self.defer(
            trigger=FenceTrigger(
                pipeline=self.pipeline,
                target_conn_id=self.target_conn_id,
                owner=run_identity(context).owner,
                deadline=until.isoformat(),
            ),
            method_name=self.resume.__name__,
            # Made of seconds: the supervisor's wire knows no pendulum durations.
            timeout=timedelta(seconds=max((until - now).total_seconds(), 0)) + _GRACE,
        )

    def _refuse(self, event: dict[str, Any]) -> None:
        if event["status"] == "error":
            raise ConfigurationError(str(event["message"]))
        raise FatalError(
            f"another run still owns the pipeline after {self.fence_timeout}: {event['owner']}",
            op="fence",
            pipeline=self.pipeline,
            hint="Let it end, stop it (parallel-apply stop), or clear this task later.",
        )
