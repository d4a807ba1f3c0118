"""The task that keeps the coordinator's state: parked, read, and written by its version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState
from airflow_parallel_apply.pipeline.coordinate.tasks import PARKED, Names
from airflow_parallel_apply.pipeline.errors import OwnershipLost, Unavailable
from airflow_parallel_apply.queue.model import Change, DependencyError, Insert, Task, TaskRef
from airflow_parallel_apply.queue.protocol import Queue

MAX_RACES: Final = 200
"""How often a state may be found changed by others before something must be wrong."""

Step = Callable[[CoordinatorState], tuple[CoordinatorState, list[Insert]]]


class StateTask:
    """One generation's state. As thread-safe as the queue, and as `revive`.

    `revive`: called when the task is not there; puts the generation's tasks there anew, or raises.
    """

    def __init__(self, queue: Queue, names: Names, *, claimant: str, revive: Callable[[], None] | None = None) -> None:
        self._queue = queue
        self._names = names
        self._claimant = claimant
        self._revive = revive

    def read(self) -> tuple[Task, CoordinatorState]:
        """The task and what it says. `OwnershipLost` when the generation's tasks are gone for good."""
        found = self._find()
        if not found and self._revive is not None:
            self._revive()
            found = self._find()
        if not found:
            raise OwnershipLost(
                f"the queue has no tasks of generation {self._names.generation}: it is over, or the queue was lost",
                op="coordinate",
                pipeline=self._names.pipeline,
                hint="Clear the task open with everything downstream of it.",
            )
        return found[0], CoordinatorState.from_json(found[0].value)

    def update(self, step: Step, *, change: Sequence[Change] = (), delete: Sequence[TaskRef] = ()) -> CoordinatorState:
        """Read, compute, write if nobody was faster; a refusal of the caller's own tasks is the caller's."""
        for _ in range(MAX_RACES):
            task, before = self.read()
            after, insert = step(before)
            if after == before and not (insert or change or delete):
                return after
            try:
                self._queue.modify(
                    claimant=self._claimant, insert=insert, change=[updated(task, after), *change], delete=delete
                )
            except DependencyError as error:
                if refuses_others(error, task):
                    raise
                continue
            return after
        raise contended()

    def _find(self) -> tuple[Task, ...]:
        return self._queue.tasks(self._names.coordinator, ids=[self._names.coordinator_id])


def updated(task: Task, after: CoordinatorState) -> Change:
    """The change that writes a state into its task, still parked."""
    return Change(ref=task.ref, value=after.to_json(), at=PARKED, claimed=False)


def refuses_others(error: DependencyError, task: Task) -> bool:
    """True if a modify was refused for another task than the state's: then reading the state anew does not help."""
    refused = (*error.changes, *error.deletes, *error.depends)
    return any(failure.task_id != task.task_id for failure in refused)


def contended() -> Unavailable:
    """The error after `MAX_RACES`."""
    return Unavailable("the coordinator's state changes faster than this caller can follow", op="coordinate")
