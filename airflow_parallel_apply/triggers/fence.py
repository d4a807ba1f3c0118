"""FenceTrigger: waits until the pipeline has no live owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Final

import pendulum
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_parallel_apply.hooks import connections
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.triggers.trouble import is_final

_POLL_SECONDS: Final = 2.0


class FenceTrigger(BaseTrigger):
    """Poll the target until the fence is free, or until the deadline.

    Its event says `free`, `busy` (deadline reached, with the owner) or `error` (it cannot be read), and the deadline.
    Path and arguments are wire format: deferred tasks of older releases name them.

    :param pipeline: whose fence
    :param target_conn_id: where it is kept
    :param owner: who may enter at once
    :param deadline: when to give up, ISO 8601
    """

    def __init__(self, *, pipeline: str, target_conn_id: str, owner: str, deadline: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow leaves it without annotations
        self.pipeline = pipeline
        self.target_conn_id = target_conn_id
        self.owner = owner
        self.deadline = deadline

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{FenceTrigger.__module__}.{FenceTrigger.__qualname__}",
            {
                "pipeline": self.pipeline,
                "target_conn_id": self.target_conn_id,
                "owner": self.owner,
                "deadline": self.deadline,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event. A target that cannot be reached is asked again: its restart frees no fence."""
        deadline = datetime.fromisoformat(self.deadline)
        owner: str | None = None
        trouble: ParallelApplyError | None = None
        while True:
            try:
                owner = await asyncio.to_thread(self._owner)
                if owner is None:
                    yield self._event("free")
                    return
                trouble = None
            except ParallelApplyError as error:
                trouble = error
                self.log.warning("the fence of pipeline %s cannot be read: %s", self.pipeline, error)
            late = pendulum.now("UTC") >= deadline
            if trouble is not None and (late or is_final(trouble)):
                yield self._event("error", message=str(trouble))
                return
            if late:
                yield self._event("busy", owner=owner)
                return
            await asyncio.sleep(_POLL_SECONDS)

    def _owner(self) -> str | None:
        """The live owner that is not us."""
        from airflow_parallel_apply.pipeline.watch import live_owner

        target = connections.database(self.target_conn_id, parameter="target_conn_id")
        owner = live_owner(self.pipeline, target)
        return None if owner == self.owner else owner

    def _event(self, status: str, **more: object) -> TriggerEvent:
        return TriggerEvent({"status": status, "deadline": self.deadline, **more})
