"""ChangesAvailableSensor: ends a scheduled run early and green when there is nothing to do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, NoReturn

import pendulum
from airflow.sdk import BaseSensorOperator, Context
from airflow.sdk.exceptions import AirflowSkipException

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.task import PipelineTask
from airflow_parallel_apply.triggers.changes import ChangesTrigger

DEFAULT_WAIT: Final = timedelta(seconds=10)
_GRACE: Final = timedelta(minutes=5)


class ChangesAvailableSensor(PipelineTask, BaseSensorOperator):
    """Succeeds when the run has something to do; is skipped, and with it the run, after `wait` without anything.

    There is something to do in the first run of a pipeline, with changes at the source, with captured changes that
    a channel has not applied, and after a run that did not stop cleanly. The first task of a run, it refuses wrong
    connections of all three kinds.
    Waits deferred, without a slot.

    :param wait: how long to wait for changes; zero: look once
    """

    def __init__(self, *, wait: timedelta = DEFAULT_WAIT, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.wait = wait

    def execute(self, context: Context) -> str | None:
        reason = self.guarded(context, self._look)
        if reason is not None:
            return self._found(reason)
        if self.wait <= timedelta(0):
            raise AirflowSkipException("no changes at the source")
        return self._wait()

    def _look(self) -> str | None:
        from airflow_parallel_apply.pipeline.watch import changes_available

        told = self.settings()
        return changes_available(told.config, told.source, told.target)

    def _wait(self) -> NoReturn:
        self.defer(
            trigger=ChangesTrigger(
                parameters=self.parameters,
                source_conn_id=self.source_conn_id,
                target_conn_id=self.target_conn_id,
                deadline=(pendulum.now("UTC") + self.wait).isoformat(),
            ),
            method_name=self.resume.__name__,
            timeout=self.wait + _GRACE,
        )

    def resume(self, context: Context, event: dict[str, Any]) -> str | None:
        """Go on after the trigger."""
        if event["status"] == "available":
            return self._found(str(event["reason"]))
        if event["status"] == "error":
            return self.guarded(context, lambda: _raise(str(event["message"])))
        raise AirflowSkipException(f"no changes at the source within {self.wait}")

    def _found(self, reason: str) -> str:
        self.log.info("there is something to do: %s", reason)
        return reason


def _raise(message: str) -> str:
    raise ConfigurationError(message)
