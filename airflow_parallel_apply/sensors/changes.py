"""ChangesAvailableSensor: ends a scheduled run early and green when there is nothing to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pendulum
from airflow.sdk import BaseSensorOperator, Context
from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR, TriggerFailureReason
from airflow.sdk.exceptions import AirflowSkipException

from airflow_parallel_apply.deferral import trigger
from airflow_parallel_apply.hooks import parameters
from airflow_parallel_apply.pipeline.errors import ConfigurationError, FatalError, ParallelApplyError, Unavailable
from airflow_parallel_apply.pipeline.model.interval import Interval
from airflow_parallel_apply.task import SKIPPED_KEY, PipelineTask, interval_of

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.admin.watch import Look

DEFAULT_WAIT: Final = timedelta(seconds=10)
_GRACE: Final = timedelta(minutes=5)
_CLOCKS_APART: Final = timedelta(minutes=10)
"""How far the source's clock may be behind ours."""


class ChangesAvailableSensor(PipelineTask, BaseSensorOperator):
    """Succeeds when the run has something to do; otherwise skips itself, and with it the run, after `wait`.

    There is something to do in the first run of a pipeline, when the source has changes, or tables that no run has
    begun to follow, when a channel has not applied captured changes, and after a run that did not stop cleanly; also
    when the source does not fit the log, since `capture` can say why. As the first task of a run it refuses wrong
    connections of all three kinds.
    A run with a data interval waits until the source is past the interval, and looks once: later changes belong to
    other runs. The sensor waits deferred, without a slot.

    :param wait: how long to wait for changes; zero: look once
    :param until: offset at which the run ends, as given to the capture task; its data interval then does not matter
    """

    template_fields: Sequence[str] = (*PipelineTask.template_fields, "until")

    def __init__(self, *, wait: timedelta = DEFAULT_WAIT, until: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.wait = parameters.duration("wait", wait)
        self.until = until

    def execute(self, context: Context) -> str | None:
        interval = self._interval(context)
        if interval is not None and not self.guarded(context, lambda: self._is_past(interval)):
            self._wait_for_source(interval)
        return self._look_once(context, interval)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """A trigger comes to its own end before Airflow ends the deferral, unless no triggerer is there. Airflow would
        take that for the sensor's end of patience, after which it retries nothing: the task looks itself instead.
        """
        error = (next_kwargs or {}).get("error")
        if next_method == TRIGGER_FAIL_REPR and error == TriggerFailureReason.TRIGGER_TIMEOUT:
            next_method, next_kwargs = self.resume.__name__, {"event": {"status": "unwatched"}}
        return super().resume_execution(next_method, next_kwargs, context)

    def resume(self, context: Context, event: dict[str, Any]) -> str | None:
        """Go on after a trigger."""
        match event["status"]:
            case "available":
                self.log.info("looking again: %s", event["reason"])
                # Older releases' triggers tell no deadline: they have looked at the log themselves.
                return self._look_once(context, None, deadline=event.get("deadline"))
            case "past":
                return self._look_once(context, self._interval(context))
            case "error":
                return self._go_on(context, ConfigurationError(str(event["message"])))
            case "unwatched":
                self.log.warning("no triggerer has looked in time: looking here")
                return self._go_on(context, Unavailable("no triggerer waits for the source to be past the interval"))
            case "early":
                return self.guarded(context, self._refuse_clock)
        raise self._skip(context, f"no changes at the source within {self.wait}")

    def _go_on(self, context: Context, trouble: ParallelApplyError) -> str | None:
        """After a trigger that could not look, which need not be so where tasks run. `trouble`: raised while the source
        is not past the interval.
        """
        interval = self._interval(context)

        def confirm() -> None:
            if interval is not None and not self._is_past(interval):
                raise trouble

        self.guarded(context, confirm)
        return self._look_once(context, interval, deadline=pendulum.now("UTC").isoformat())

    def _interval(self, context: Context) -> Interval | None:
        return None if self.until else interval_of(context.get("data_interval_start"), context.get("data_interval_end"))

    def _is_past(self, interval: Interval) -> bool:
        from airflow_parallel_apply.pipeline.admin.watch import source_is_past

        settings = self.settings()
        return source_is_past(settings.config, settings.source, interval.end)

    def _look_once(self, context: Context, interval: Interval | None, *, deadline: str | None = None) -> str | None:
        look = self.guarded(context, lambda: self._look(interval))
        if look.reason is not None:
            self.log.info("there is something to do: %s", look.reason)
            return look.reason
        if interval is not None:
            raise self._skip(context, f"nothing of {interval} is left to apply")
        if self.wait <= timedelta(0):
            raise self._skip(context, "no changes at the source")
        until = pendulum.now("UTC") + self.wait if deadline is None else datetime.fromisoformat(deadline)
        if until <= pendulum.now("UTC"):
            raise self._skip(context, f"no changes at the source within {self.wait}")
        return self._wait(look, until)

    def _skip(self, context: Context, reason: str) -> AirflowSkipException:
        context["ti"].xcom_push(SKIPPED_KEY, reason)
        return AirflowSkipException(reason)

    def _look(self, interval: Interval | None) -> Look:
        from airflow_parallel_apply.pipeline.admin.watch import look_for_changes

        settings = self.settings()
        return look_for_changes(settings.config, settings.source, settings.target, interval=interval)

    def _wait_for_source(self, interval: Interval) -> NoReturn:
        deadline = max(pendulum.now("UTC"), interval.end) + _CLOCKS_APART
        self.log.info("waiting until the source is past %s", interval)
        self.defer(
            trigger=trigger(
                "source_time.SourceTimeTrigger",
                parameters=self.parameters,
                source_conn_id=self.source_conn_id,
                time=interval.end.isoformat(),
                deadline=deadline.isoformat(),
            ),
            method_name=self.resume.__name__,
            timeout=timedelta(seconds=(deadline - pendulum.now("UTC")).total_seconds()) + _GRACE,
        )

    def _wait(self, look: Look, deadline: datetime) -> NoReturn:
        self.defer(
            trigger=trigger(
                "changes.ChangesTrigger",
                parameters=self.parameters,
                source_conn_id=self.source_conn_id,
                target_conn_id=self.target_conn_id,
                ledger_conn_id=self.ledger_conn_id,
                deadline=deadline.isoformat(),
                generation=look.generation,
                captured_offset=look.captured_offset,
                resume=None if look.resume is None else asdict(look.resume),
            ),
            method_name=self.resume.__name__,
            timeout=self.wait + _GRACE,
        )

    def _refuse_clock(self) -> str:
        raise FatalError(
            f"the source's clock is not past the run's interval {_CLOCKS_APART} after this one's",
            op="changes_available",
            pipeline=self.pipeline,
            hint="Set the clocks, or clear this task later.",
        )
