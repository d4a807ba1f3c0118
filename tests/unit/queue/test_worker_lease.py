"""A worker whose queue does not answer: the work is told when its lease is over, not when the call is."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from airflow_parallel_apply.queue import Held, Insert, Task, Worker
from airflow_parallel_apply.queue.memory import MemoryQueue


class Silent(MemoryQueue):
    """Takes renewals, and answers none of them while the work goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()

    def renew(self, task: Task, *, claimant: str, lease: timedelta) -> Task:
        assert self.answers.wait(240)
        return super().renew(task, claimant=claimant, lease=lease)


def test_work_hears_that_its_lease_is_over_while_a_renewal_hangs() -> None:
    queue = Silent()
    queue.modify(claimant="maker", insert=[Insert(queue="q")])
    told = threading.Event()

    def work(held: Held) -> None:
        held.when_lost(told.set)
        # Long before the call's own deadline.
        assert told.wait(120)
        assert held.lost
        queue.answers.set()

    worker = Worker(queue, ["q"], claimant="ann", lease=timedelta(milliseconds=400))
    assert worker.run_one(work, timeout=timedelta(minutes=1)) is False
    assert told.is_set()
    assert len(queue.tasks("q")) == 1


@pytest.mark.parametrize(
    ("name", "lease", "told"),
    [("n" * 510, timedelta(seconds=1), "queue's name"), ("q", timedelta(0), "a worker's lease")],
)
def test_a_worker_that_could_not_end_its_tasks_does_not_begin(name: str, lease: timedelta, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Worker(MemoryQueue(), [name], claimant="ann", lease=lease)
