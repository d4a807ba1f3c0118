"""ChangesTrigger: waits until a pipeline has something to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Final

import pendulum
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_parallel_apply.hooks import connections
from airflow_parallel_apply.hooks.parameters import pipeline_config
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.triggers.trouble import is_final

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
        while True:
            trouble: ParallelApplyError | None = None
            try:
                reason = await asyncio.to_thread(self._look)
                if reason is not None:
                    yield TriggerEvent({"status": "available", "reason": reason})
                    return
            except ParallelApplyError as error:
                trouble = error
            late = pendulum.now("UTC") >= deadline
            if trouble is not None and (late or is_final(trouble)):
                yield TriggerEvent({"status": "error", "message": str(trouble)})
                return
            if late:
                yield TriggerEvent({"status": "nothing"})
                return
            await asyncio.sleep(_POLL_SECONDS)

    def _look(self) -> str | None:
        from airflow_parallel_apply.pipeline.watch import changes_available

        return changes_available(
            pipeline_config(self.parameters),
            connections.database(self.source_conn_id, parameter="source_conn_id"),
            connections.database(self.target_conn_id, parameter="target_conn_id"),
        )
