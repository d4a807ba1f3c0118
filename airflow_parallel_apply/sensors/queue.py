"""Sensors of queues, for any DAG: until they are empty, or until a count of them lies within bounds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_parallel_apply.deferral import trigger
from airflow_parallel_apply.hooks.queue import MEASURES, QueueCounts, QueueHook
from airflow_parallel_apply.pipeline.errors import FatalError, ParallelApplyError
from airflow_parallel_apply.queue.model import QueueError, QueueMisconfigured

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

_POLL_SECONDS: Final = 5.0


class _QueueSensor(BaseSensorOperator):
    """Base: looks once, then waits deferred, without a slot, for at most `timeout`. Returns the counts it saw last.

    :param queue_conn_id: connection of type parallel_apply_queue, or postgres
    :param queues: names of queues, one or several
    :param prefix: beginnings of names of queues, one or several
    :param deferrable: False: poke in the worker, as `mode` says
    :param poke_interval: time between two looks, if the queue does not report by itself
    """

    template_fields: Sequence[str] = ("queue_conn_id", "queues", "prefix")

    def __init__(
        self,
        *,
        queue_conn_id: str = QueueHook.default_conn_name,
        queues: Sequence[str] | str = (),
        prefix: Sequence[str] | str = (),
        deferrable: bool = True,
        poke_interval: timedelta | float = _POLL_SECONDS,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.queue_conn_id = queue_conn_id
        self.queues = queues
        self.prefix = prefix
        self.deferrable = deferrable

    def execute(self, context: Context) -> dict[str, int]:
        if not self.deferrable:
            counts: dict[str, int] = super().execute(context)
            return counts
        try:
            found = self._look()
            if found is None:
                self._wait()
        except AirflowFailException as error:
            # As where it pokes.
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(error)) from error
            raise
        return found.to_json()

    def poke(self, context: Context) -> PokeReturnValue:
        del context
        found = self._look()
        return PokeReturnValue(is_done=found is not None, xcom_value=None if found is None else found.to_json())

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, int]:
        """Go on after the trigger."""
        del context
        if event["status"] == "error":
            raise AirflowFailException(str(event["message"]))
        counts: dict[str, int] = event["counts"]
        return counts

    def _is_met(self, counts: QueueCounts) -> bool:
        raise NotImplementedError

    def _trigger(self, **watched: Any) -> BaseTrigger:
        raise NotImplementedError

    def _look(self) -> QueueCounts | None:
        """The counts, if they are what is waited for and the queue is there. Errors in one line, for good."""
        queues, prefix = _names(self.queues), _names(self.prefix)
        if not queues and not prefix:
            raise AirflowFailException("queues and prefix are both empty: name what to wait for")
        try:
            counts = QueueHook(self.queue_conn_id).counts(queues, prefix)
        except (FatalError, QueueMisconfigured) as error:
            raise AirflowFailException(str(error)) from None
        except (ParallelApplyError, QueueError) as error:
            self.log.warning("the queue cannot be asked now: %s", error)
            return None
        return counts if self._is_met(counts) else None

    def _wait(self) -> NoReturn:
        self.defer(
            trigger=self._trigger(
                queue_conn_id=self.queue_conn_id,
                queues=_names(self.queues),
                prefix=_names(self.prefix),
                poll_seconds=self.poke_interval,
            ),
            method_name=self.resume.__name__,
            timeout=timedelta(seconds=self.timeout),
        )


class QueueEmptySensor(_QueueSensor):
    """Succeeds when none of the queues has a task: available, claimed or delayed."""

    def _is_met(self, counts: QueueCounts) -> bool:
        return counts.size == 0

    def _trigger(self, **watched: Any) -> BaseTrigger:
        return trigger("queue.QueueEmptyTrigger", **watched)


class QueueStatsSensor(_QueueSensor):
    """Succeeds when a count of the queues lies within its bounds.

    :param measure: ``size``, ``available``, ``claimed``, ``future`` (sums), ``max_claims`` (of any task), or ``queues``
        (how many have tasks)
    :param at_least: lower bound of the count
    :param at_most: upper bound of the count
    """

    template_fields: Sequence[str] = (*_QueueSensor.template_fields, "measure", "at_least", "at_most")

    def __init__(
        self,
        *,
        measure: str = "available",
        at_least: int | str | None = None,
        at_most: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.measure = measure
        self.at_least = at_least
        self.at_most = at_most

    def _is_met(self, counts: QueueCounts) -> bool:
        return counts.lies_within(**self._bounds())

    def _trigger(self, **watched: Any) -> BaseTrigger:
        return trigger("queue.QueueStatsTrigger", **watched, **self._bounds())

    def _bounds(self) -> dict[str, Any]:
        bounds = {"at_least": _number(self.at_least), "at_most": _number(self.at_most)}
        if self.measure not in MEASURES or set(bounds.values()) == {None}:
            raise AirflowFailException(
                f"measure is one of {', '.join(MEASURES)}, with at_least, at_most or both, not {self.measure!r}"
            )
        return {"measure": self.measure, **bounds}


def _names(given: Sequence[str] | str) -> list[str]:
    """One or several; a template that renders to nothing names none."""
    names = [given] if isinstance(given, str) else list(given)
    return [name for name in names if name]


def _number(given: int | str | None) -> int | None:
    try:
        return None if given is None or given == "" else int(given)
    except ValueError:
        raise AirflowFailException(f"a bound is a whole number, not {given!r}") from None
