"""The queue that steers a pipeline: in its target's database, or elsewhere, beside those of other targets.

What counts is in the target, so nothing of this depends on the two being one database: no transaction spans both, a
unit's commit comes before its tasks' end, and whoever meets a task again finds its position there. A queue that comes
back after a crash goes on; one that was lost is filled anew by the first lane that misses it
(`seeding.py`).

A generation's tasks are in one queue only, whose place `open` writes beside the generation's number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from airflow_parallel_apply.pipeline.config import Endpoint, QueueEndpoint
from airflow_parallel_apply.pipeline.coordinate.tasks import Names, prefix_of
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.ledger.protocol import PipelineState
from airflow_parallel_apply.pipeline.run.sessions import claimant_of
from airflow_parallel_apply.pipeline.target.protocol import Target
from airflow_parallel_apply.queue.model import DependencyError, TaskRef
from airflow_parallel_apply.queue.open import PATIENCE, open_queue
from airflow_parallel_apply.queue.protocol import Queue

_SCOPE_LETTERS: Final = 12


class PipelineQueue:
    """A queue as one pipeline and target use it. `place`: as the ledger names it, empty in the target's database."""

    def __init__(self, queue: Queue, *, pipeline: str, place: str = "", scope: str = "") -> None:
        self.queue = queue
        self.place = place
        self._pipeline = pipeline
        self._scope = scope

    def names(self, generation: int) -> Names:
        """The names of a generation's queues."""
        return Names(pipeline=self._pipeline, generation=generation, scope=self._scope)

    def require(self, state: PipelineState) -> None:
        """`ConfigurationError` when the generation's tasks are in another queue."""
        if state.queue == self.place:
            return
        raise ConfigurationError(
            f"the run was opened with the queue {shown_place(state.queue)}, and this was given "
            f"{shown_place(self.place)}",
            pipeline=self._pipeline,
            hint="Name that queue (parameter queue, option --queue), or clear the task open with everything "
            "downstream of it.",
        )

    def highest_generation(self) -> int:
        """The last generation that the queue has tasks of; 0 where there is none."""
        return max((number for number, _ in self._generations()), default=0)

    def sweep(self, *, below: int) -> None:
        """Delete the tasks of generations below one: a task that stood still must not touch those of its successors.
        What a dead lane still holds goes with a later sweep.
        """
        for generation, queue in self._generations():
            if generation < below:
                for task in self.queue.tasks(queue, omit_values=True):
                    self._delete(task.ref)

    def close(self) -> None:
        """Close the queue's connections; idempotent."""
        self.queue.close()

    def _generations(self) -> Iterator[tuple[int, str]]:
        """The pipeline's queues, each with its generation."""
        prefix = prefix_of(self._pipeline, self._scope)
        for stats in self.queue.queue_stats(prefix=[prefix]):
            generation = stats.queue.removeprefix(prefix).split("/")[0]
            if generation.isdigit():
                yield int(generation), stats.queue

    def _delete(self, ref: TaskRef) -> bool:
        try:
            self.queue.modify(claimant=claimant_of("sweep"), delete=[ref])
        except DependencyError:
            return False
        return True


def is_in_target(state: PipelineState) -> bool:
    """True if there are, or were, tasks in the target's own database; its tables are there then."""
    return state.generation > 0 and not state.queue


def open_pipeline_queue(
    target: Target, endpoint: Endpoint, queue: QueueEndpoint | None, pipeline: str
) -> PipelineQueue:
    """`queue` None: in the database of the ledger of `endpoint`, the target, on which `target` is a session."""
    if queue is None:
        return PipelineQueue(open_queue(endpoint.steering.url), pipeline=pipeline)
    identity = target.identity()
    whose = f"{identity.server}/{identity.database}"
    scope = hashlib.sha256(whose.encode()).hexdigest()[:_SCOPE_LETTERS]
    # Whoever waits longer notices too late that it is to end; trying again is for the caller.
    opened = open_queue(queue.dsn, deadline=PATIENCE)
    return PipelineQueue(opened, pipeline=pipeline, place=queue.place, scope=scope)


def shown_place(place: str) -> str:
    """For people."""
    return place or "in the target's database"
