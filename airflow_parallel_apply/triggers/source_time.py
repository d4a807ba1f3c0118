"""SourceTimeTrigger: waits until the source is past a time."""

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
from airflow_parallel_apply.triggers.waiting import wait_for

_POLL_SECONDS: Final = 1.0


class SourceTimeTrigger(BaseTrigger):
    """Sleep until a time, a second at least, then ask the source each second whether it is past it, until the deadline.

    Its event says `past`, `early` (deadline reached) or `error` (a person has to act).
    Path and arguments are wire format: deferred tasks of older releases name them.

    :param parameters: the rendered pipeline parameters
    :param source_conn_id: connection to the source
    :param time: what the source's clock has to be past, ISO 8601
    :param deadline: when to give up, ISO 8601
    """

    def __init__(self, *, parameters: dict[str, Any], source_conn_id: str, time: str, deadline: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow leaves it without annotations
        self.parameters = parameters
        self.source_conn_id = source_conn_id
        self.time = time
        self.deadline = deadline

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{SourceTimeTrigger.__module__}.{SourceTimeTrigger.__qualname__}",
            {
                "parameters": self.parameters,
                "source_conn_id": self.source_conn_id,
                "time": self.time,
                "deadline": self.deadline,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event."""
        ahead = (datetime.fromisoformat(self.time) - pendulum.now("UTC")).total_seconds()
        await asyncio.sleep(max(ahead, _POLL_SECONDS))
        deadline = datetime.fromisoformat(self.deadline)
        try:
            past = await wait_for(self._look, deadline=deadline, poll_seconds=_POLL_SECONDS)
        except ParallelApplyError as error:
            yield TriggerEvent({"status": "error", "message": str(error)})
            return
        yield TriggerEvent({"status": "past" if past else "early"})

    def _look(self) -> bool | None:
        from airflow_parallel_apply.pipeline.admin.watch import source_is_past

        source = connections.database(self.source_conn_id, parameter="source_conn_id")
        time = datetime.fromisoformat(self.time)
        return source_is_past(pipeline_config(self.parameters), source, time) or None
