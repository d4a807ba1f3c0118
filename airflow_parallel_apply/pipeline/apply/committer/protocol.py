"""A committer: what of a channel's branches is one unit, whose their staging is, and how they become visible.

`ChannelApply` stages units in the background and judges failures, whatever the consistency. It calls the committer in
this order, in the lane's main thread, and anew from `begin` after a transient error::

    begin ──▶ (following ──▶ complete)* ──▶ …        a unit is refused: meet

and, beside `complete`, in a thread of its own, `stage` for what `begin` or `following` returned.
"""

from __future__ import annotations

from typing import Protocol

from airflow_parallel_apply.pipeline.apply.batch import Batch
from airflow_parallel_apply.pipeline.coordinate.tasks import ChannelWork
from airflow_parallel_apply.pipeline.errors import FatalError
from airflow_parallel_apply.pipeline.model.epoch import StagedUnit, Unit


class Committer(Protocol):
    """Serves one lane, and one channel of it at a time: that of the last `begin`."""

    def begin(self, work: ChannelWork) -> Batch:
        """Become the one who may stage and complete what begins with the head that the lane holds, and cut the first
        unit of it: none where a former claimant made it visible. Ends former claimants of the same.

        Errors: `DependencyError`, `OwnershipLost` where the claim is another's, or the head does not begin where the
        target is.
        """
        ...

    def following(self, batch: Batch) -> Batch | None:
        """The unit behind a batch, to be staged while that one is completed. None where the channel's queue shows
        something else, or where the lane is to look at its other queues first.
        """
        ...

    def stage(self, unit: Unit) -> StagedUnit:
        """Load a unit's rows. Errors: those of `Stage.stage`."""
        ...

    def complete(self, done: Batch, staged: StagedUnit | None, following: Batch | None) -> Batch | None:
        """Make a unit visible, or hand what is staged to whom makes it so; then delete its tasks and hold the head of
        `following` in one modify. Returns `following`, or None where that is not begun: it is held up (law 4), or there
        is none. Whoever dies in between leaves tasks that cost the next claimant nothing.

        Errors: `FatalError` for a unit that is refused, before its tasks are touched; `DependencyError`,
        `OwnershipLost`, transient ones.
        """
        ...

    def meet(self, batch: Batch, error: FatalError) -> bool:
        """Go another way with a unit that was refused, if there is one; the lane then holds its head no more. Else
        nothing is changed, and the unit has failed.
        """
        ...
