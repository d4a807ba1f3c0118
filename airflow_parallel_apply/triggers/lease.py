"""LeaseTrigger: waits until the pipeline has no live owner, and until it is the run's turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pendulum
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_parallel_apply.hooks import connections
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.triggers.waiting import is_final

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.admin.watch import LeaseView

_POLL_SECONDS: Final = 2.0
_LOOK_AGAIN: Final = timedelta(minutes=1)
"""A task that waits for its turn asks Airflow so often whether those before it still come."""


class LeaseTrigger(BaseTrigger):
    """Poll the ledger until the lease is free and what goes first is applied, or until the deadline.

    Its event says `free` (or that it is time to look again), `others_ran` (deadline reached, but other runs came and
    went), `busy` (deadline reached, with the owner) or `error` (it cannot be read), and the deadline.
    Path and arguments are wire format: deferred tasks of older releases name them.

    :param pipeline: whose lease
    :param target_conn_id: where the pipeline applies
    :param ledger_conn_id: where its ledger is; empty: there
    :param owner: who may enter at once
    :param deadline: when to give up, ISO 8601
    :param reach_seqno: what the runs that go first apply; None: nobody goes first
    :param generation: of the owner that is waited for
    :param lapsed: whether that owner's lease is over, and Airflow said that its run goes on
    """

    def __init__(
        self,
        *,
        pipeline: str,
        target_conn_id: str,
        owner: str,
        deadline: str,
        reach_seqno: int | None = None,
        generation: int | None = None,
        lapsed: bool = False,
        ledger_conn_id: str = "",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow leaves it without annotations
        self.pipeline = pipeline
        self.target_conn_id = target_conn_id
        self.ledger_conn_id = ledger_conn_id
        self.owner = owner
        self.deadline = deadline
        self.reach_seqno = reach_seqno
        self.generation = generation
        self.lapsed = lapsed

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{LeaseTrigger.__module__}.{LeaseTrigger.__qualname__}",
            {
                "pipeline": self.pipeline,
                "target_conn_id": self.target_conn_id,
                "ledger_conn_id": self.ledger_conn_id,
                "owner": self.owner,
                "deadline": self.deadline,
                "reach_seqno": self.reach_seqno,
                "generation": self.generation,
                "lapsed": self.lapsed,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event. A target that cannot be reached is asked again: its restart frees no lease."""
        deadline = datetime.fromisoformat(self.deadline)
        look_again = pendulum.now("UTC") + _LOOK_AGAIN
        view: LeaseView | None = None
        trouble: ParallelApplyError | None = None
        while True:
            # Before the first look, too. The task has just looked, and a trigger that fires at once meets a scheduler
            # that has not heard of the deferral yet: it then takes the resumed task for one that failed.
            await asyncio.sleep(_POLL_SECONDS)
            try:
                view = await asyncio.to_thread(self._view)
                if view.owner in (None, self.owner) and (self._is_our_turn(view) or pendulum.now("UTC") >= look_again):
                    yield self._event("free")
                    return
                trouble = None
            except ParallelApplyError as error:
                trouble = error
                self.log.warning("the lease of pipeline %s cannot be read: %s", self.pipeline, error)
            late = pendulum.now("UTC") >= deadline
            if trouble is not None and (late or is_final(trouble)):
                yield self._event("error", message=str(trouble))
                return
            if late and view is not None:
                others_ran = self.generation is not None and view.generation != self.generation
                owner = view.owner or view.lapsed_owner
                yield self._event("others_ran") if others_ran else self._event("busy", owner=owner)
                return

    def _view(self) -> LeaseView:
        from airflow_parallel_apply.pipeline.admin.watch import lease_view

        return lease_view(self.pipeline, connections.target(self.target_conn_id, self.ledger_conn_id))

    def _is_our_turn(self, view: LeaseView) -> bool:
        if self.lapsed and view.lapsed_owner is not None and view.generation == self.generation:
            return False
        return self.reach_seqno is None or view.applied_seqno >= self.reach_seqno

    def _event(self, status: str, **more: object) -> TriggerEvent:
        return TriggerEvent({"status": status, "deadline": self.deadline, "generation": self.generation, **more})
