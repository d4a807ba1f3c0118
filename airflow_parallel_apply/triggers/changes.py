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
from airflow_parallel_apply.triggers.waiting import wait_for

_POLL_SECONDS: Final = 2.0


class ChangesTrigger(BaseTrigger):
    """Look every two seconds until there may be something to do, or until the deadline. The triggerer need not see the
    log: what it says there was when the task deferred is told, and the task looks again, with the log.

    Its event says `available` (with the reason, and the deadline for a task that finds nothing after all), `nothing`
    (deadline reached).
    Path and arguments are wire format: deferred tasks of older releases name them.

    :param parameters: the rendered pipeline parameters
    :param source_conn_id: connection to the source
    :param target_conn_id: connection to the target
    :param ledger_conn_id: where its ledger is; empty: there
    :param deadline: when to give up, ISO 8601
    :param generation: the pipeline's, when the task deferred
    :param captured_offset: the log's then; None (older releases): the task is to look again
    :param resume: the log's resume point then, if it had one
    :param captured_lsn: what older releases tell in place of `captured_offset`; not used
    """

    def __init__(
        self,
        *,
        parameters: dict[str, Any],
        source_conn_id: str,
        target_conn_id: str,
        deadline: str,
        generation: int = 0,
        captured_offset: int | None = None,
        resume: dict[str, Any] | None = None,
        ledger_conn_id: str = "",
        captured_lsn: int | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow leaves it without annotations
        del captured_lsn
        self.parameters = parameters
        self.source_conn_id = source_conn_id
        self.target_conn_id = target_conn_id
        self.ledger_conn_id = ledger_conn_id
        self.deadline = deadline
        self.generation = generation
        self.captured_offset = captured_offset
        self.resume = resume

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{ChangesTrigger.__module__}.{ChangesTrigger.__qualname__}",
            {
                "parameters": self.parameters,
                "source_conn_id": self.source_conn_id,
                "target_conn_id": self.target_conn_id,
                "ledger_conn_id": self.ledger_conn_id,
                "deadline": self.deadline,
                "generation": self.generation,
                "captured_offset": self.captured_offset,
                "resume": self.resume,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event. A database that cannot be reached is asked again until the deadline; then, and after any other
        error, the task looks a last time, since the error need not be there where tasks run.
        """
        deadline = datetime.fromisoformat(self.deadline)
        # The task has just looked; and a scheduler that has not heard of the deferral yet takes a task that is resumed
        # at once for one that failed.
        await asyncio.sleep(_POLL_SECONDS)
        try:
            reason = await wait_for(self._look, deadline=deadline, poll_seconds=_POLL_SECONDS)
        except ParallelApplyError as error:
            told = {"reason": f"the triggerer could not look: {error}", "deadline": pendulum.now("UTC").isoformat()}
            yield TriggerEvent({"status": "available", **told})
            return
        if reason is None:
            yield TriggerEvent({"status": "nothing"})
            return
        yield TriggerEvent({"status": "available", "reason": reason, "deadline": self.deadline})

    def _look(self) -> str | None:
        from airflow_parallel_apply.pipeline.admin.watch import Look, changes_since
        from airflow_parallel_apply.pipeline.log.protocol import ResumePoint

        if self.captured_offset is None:
            return "a task of an older release waits"
        return changes_since(
            pipeline_config(self.parameters),
            connections.database(self.source_conn_id, parameter="source_conn_id"),
            connections.target(self.target_conn_id, self.ledger_conn_id),
            Look(
                generation=self.generation,
                captured_offset=self.captured_offset,
                resume=None if self.resume is None else ResumePoint(**self.resume),
            ),
        )
