"""ChangesTrigger: waits until a pipeline has something to do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Final

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_parallel_apply.hooks import connections
from airflow_parallel_apply.hooks.parameters import pipeline_config
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.triggers.waiting import wait_for

_POLL_SECONDS: Final = 2.0


class ChangesTrigger(BaseTrigger):
    """Look every two seconds until there is something to do, or until the deadline.

    Its event says `available` (with the reason), `nothing` (deadline reached) or `error` (a person has to act).
    Path and arguments are wire format: deferred tasks of older releases name them.

    :param parameters: the rendered pipeline parameters
    :param source_conn_id: connection to the source
    :param target_conn_id: connection to the target
    :param deadline: when to give up, ISO 8601
    """

    def __init__(
        self,
        *,
        parameters: dict[str, Any],
        source_conn_id: str,
        target_conn_id: str,
        deadline: str,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow leaves it without annotations
        self.parameters = parameters
        self.source_conn_id = source_conn_id
        self.target_conn_id = target_conn_id
        self.deadline = deadline

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{ChangesTrigger.__module__}.{ChangesTrigger.__qualname__}",
            {
                "parameters": self.parameters,
                "source_conn_id": self.source_conn_id,
                "target_conn_id": self.target_conn_id,
                "deadline": self.deadline,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event. A database that cannot be reached is asked again until the deadline, then it is an error."""
        deadline = datetime.fromisoformat(self.deadline)
        try:
            reason = await wait_for(self._look, deadline=deadline, poll_seconds=_POLL_SECONDS)
        except ParallelApplyError as error:
            yield TriggerEvent({"status": "error", "message": str(error)})
            return
        yield TriggerEvent({"status": "nothing"} if reason is None else {"status": "available", "reason": reason})

    def _look(self) -> str | None:
        from airflow_parallel_apply.pipeline.watch import changes_available

        return changes_available(
            pipeline_config(self.parameters),
            connections.database(self.source_conn_id, parameter="source_conn_id"),
            connections.database(self.target_conn_id, parameter="target_conn_id"),
        )
