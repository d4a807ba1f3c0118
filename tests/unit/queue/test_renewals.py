"""A renewal whose answer was lost leaves the claim where it was."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_parallel_apply.pipeline.apply.lease_renewer import CLAIM, LeaseRenewer
from airflow_parallel_apply.queue import Insert, QueueUnavailable, Task
from airflow_parallel_apply.queue.memory import MemoryQueue

LEASE = timedelta(minutes=1)


class Unheard(MemoryQueue):
    """Does the first renewal, and its answer is lost."""

    was_asked = False

    def renew(self, task: Task, *, claimant: str, lease: timedelta) -> Task:
        renewed = super().renew(task, claimant=claimant, lease=lease)
        if not self.was_asked:
            self.was_asked = True
            raise QueueUnavailable("the answer was lost")
        return renewed


@pytest.mark.parametrize("claimed_again", [False, True])
def test_a_lane_keeps_a_claim_whose_renewal_was_done_unheard(claimed_again: bool) -> None:
    queue, lost = Unheard(), list[str]()
    queue.modify(claimant="maker", insert=[Insert(queue="q")])
    task = queue.try_claim(["q"], claimant="lane", lease=LEASE)
    renewer = LeaseRenewer(queue, claimant="lane", lease=LEASE, renew_lease=lambda: None, on_lost=lost.append)
    renewer.hold(CLAIM, task)
    renewer.renew()
    if claimed_again:
        (held,) = queue.tasks("q")
        queue.renew(held, claimant="lane", lease=timedelta(0))
        assert queue.try_claim(["q"], claimant="another", lease=LEASE)
    renewer.renew()
    if claimed_again:
        assert lost == [CLAIM]
    else:
        assert not lost
        assert renewer.held(CLAIM) == queue.tasks("q")[0]
