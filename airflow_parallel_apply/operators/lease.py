"""Tasks that need the pipeline's lease: while another live run owns it they wait deferred, never with a slot in hand.

::

    execute ── LeaseBusy ──▶ deferred (LeaseTrigger polls the target) ── free ──▶ resume ── LeaseBusy ──▶ deferred …
                                                                     └─ deadline ──▶ failed, naming the owner
                                                                        (or, for a triggerer that could not look,
                                                                        a last attempt)

The deadline is set by the first refusal and travels with the trigger. It begins anew with each generation of the
pipeline: runs that queue for a long time do not fail while others take their turns.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final, NoReturn

import pendulum
from airflow.sdk import Context

from airflow_parallel_apply.deferral import trigger
from airflow_parallel_apply.hooks import parameters
from airflow_parallel_apply.pipeline.errors import ConfigurationError, FatalError, LeaseBusy
from airflow_parallel_apply.task import PipelineTask, run_owner

_GRACE: Final = timedelta(minutes=5)
"""The triggerer's own timeout comes after the trigger's deadline, for a trigger that answers nothing."""


class LeaseTask(PipelineTask):
    """Base of the tasks that wait for the pipeline's lease.

    :param lease_timeout: how long to wait while one other run owns the pipeline; a queue of runs may take longer
    """

    def __init__(self, *, lease_timeout: timedelta = timedelta(minutes=30), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lease_timeout = parameters.duration("lease_timeout", lease_timeout)

    def work(self, context: Context) -> Any:
        """Do the task's work. Errors: `LeaseBusy`, for which the task waits; any other error ends it."""
        raise NotImplementedError

    def execute(self, context: Context) -> Any:
        return self._attempt(context)

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        """Go on after the trigger: with the lease free, or with the reason why not."""
        if event["status"] == "busy":
            return self.guarded(context, lambda: self._refuse(event))
        # What a triggerer cannot read a worker may: an error there counts only if the pipeline is busy here, too.
        return self._attempt(context, event)

    def _attempt(self, context: Context, event: dict[str, Any] | None = None) -> Any:
        busy: LeaseBusy | None = None

        def once() -> Any:
            nonlocal busy
            try:
                return self.work(context)
            except LeaseBusy as error:
                busy = error
                return None

        result = self.guarded(context, once)
        if busy is None:
            return result
        if event is not None and event["status"] == "error":
            self.guarded(context, lambda: self._refuse(event))
        return self._wait(context, busy, event)

    def _wait(self, context: Context, busy: LeaseBusy, event: dict[str, Any] | None) -> NoReturn:
        now = pendulum.now("UTC")
        until: datetime = now + self.lease_timeout
        if event is not None and event.get("generation") == busy.generation:
            until = datetime.fromisoformat(event["deadline"])
        self.log.info("%s; waiting for it until %s", busy, until.isoformat(timespec="seconds"))
        self.defer(
            trigger=trigger(
                "lease.LeaseTrigger",
                pipeline=self.pipeline,
                target_conn_id=self.target_conn_id,
                ledger_conn_id=self.ledger_conn_id,
                owner=run_owner(context),
                deadline=until.isoformat(),
                reach_seqno=busy.reach_seqno,
                generation=busy.generation,
                lapsed=busy.is_lapsed,
            ),
            method_name=self.resume.__name__,
            # Made of seconds: the supervisor's wire knows no pendulum durations.
            timeout=timedelta(seconds=max((until - now).total_seconds(), 0)) + _GRACE,
        )

    def _refuse(self, event: dict[str, Any]) -> None:
        if event["status"] == "error":
            raise ConfigurationError(str(event["message"]))
        if event["owner"] is None:
            raise FatalError(
                f"the runs of earlier intervals have not applied what is theirs after {self.lease_timeout}",
                op="lease",
                pipeline=self.pipeline,
                hint="See what keeps them; then clear this task.",
            )
        raise FatalError(
            f"another run still owns the pipeline after {self.lease_timeout}: {event['owner']}",
            op="lease",
            pipeline=self.pipeline,
            hint="Let it end (unpause its DAG if that is paused), stop it (parallel-apply stop), or clear this task "
            "later.",
        )
