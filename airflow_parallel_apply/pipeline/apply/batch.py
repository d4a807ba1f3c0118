"""Cutting units out of a channel's queue: how many of the tasks in its front are applied at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from airflow_parallel_apply.pipeline.coordinate.tasks import ChannelWork, Kind
from airflow_parallel_apply.pipeline.errors import OwnershipLost
from airflow_parallel_apply.pipeline.model.epoch import Branch, Unit
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.queue.model import Task


def new_token() -> str:
    """The name of a claim: staging and positions bear it."""
    return uuid4().hex


@dataclass(frozen=True, slots=True)
class Batch:
    """The tasks of a unit, and the unit; None where the position is already past all of them."""

    tasks: tuple[Task, ...]
    unit: Unit | None
    reached: int
    """The channel's position once the unit is committed."""

    @property
    def first_seqno(self) -> int:
        """The first that it would apply: what a failure of the batch is blamed on."""
        return self.unit.after_seqno + 1 if self.unit is not None else ChannelWork.of_task(self.tasks[0]).first_seqno

    @property
    def is_direct(self) -> bool:
        """True if its unit may be committed where it is loaded."""
        return self.unit is not None and self.unit.is_direct

    @property
    def channel(self) -> int | None:
        """The one channel whose rows it applies; None where it is of all."""
        return self.unit.channel if self.unit is not None else ChannelWork.of_task(self.tasks[0]).channel


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelClaim:
    """One claim of one channel: every unit that is cut under it bears its token."""

    pipeline: str
    generation: int
    channel: int
    channels: int
    routing: Routing | None = None
    token: str = field(default_factory=new_token)

    def unit(self, after_seqno: int, last_seqno: int, *, rows: int, epoch: int, is_direct: bool = False) -> Unit:
        """The channel's rows of (after_seqno, last_seqno]."""
        return Unit(
            pipeline=self.pipeline,
            generation=self.generation,
            kind=Branch(self.channel, is_direct),
            channels=self.channels,
            token=self.token,
            after_seqno=after_seqno,
            last_seqno=last_seqno,
            row_count=rows,
            routing=self.routing,
            epoch=epoch,
        )

    def batch(
        self,
        tasks: Sequence[Task],
        after_seqno: int,
        *,
        limit_bytes: int,
        is_held_up: Callable[[int], bool],
        may_be_direct: bool = False,
    ) -> Batch:
        """As many of the branches in front as the limit allows, one at least; what is committed already costs nothing.

        `tasks` come in the queue's order, and the first is a branch. `is_held_up`: of a seqno, whether nothing that
        starts there may be begun (law 4); the caller has asked for the first one. `may_be_direct`: a unit of insertions
        is. Errors: `OwnershipLost` where the first does not begin at the position + 1.
        """
        chosen: list[Task] = []
        size = rows = inserts = 0
        reached = after_seqno
        for task in tasks:
            work = ChannelWork.of_task(task)
            is_new = work.last_seqno > after_seqno
            if work.kind is not Kind.BRANCH or (is_new and size and size + work.bytes_ > limit_bytes):
                break
            if chosen and (is_held_up(work.first_seqno) or work.first_seqno > reached + 1):
                break
            if not chosen:
                require_reached(work, after_seqno)
            chosen.append(task)
            if is_new:
                size, rows, reached = size + work.bytes_, rows + work.rows, work.last_seqno
                inserts += work.inserts
        if reached <= after_seqno:
            return Batch(tuple(chosen), None, after_seqno)
        epoch = ChannelWork.of_task(chosen[-1]).epoch
        is_direct = may_be_direct and 0 < rows == inserts
        unit = self.unit(after_seqno, reached, rows=rows, epoch=epoch, is_direct=is_direct)
        return Batch(tuple(chosen), unit, reached)


def require_reached(work: ChannelWork, seqno: int) -> None:
    """Require the channel's position to be where a task of its queue begins, or beyond. Errors: `OwnershipLost`, where
    the target has lost commits whose tasks are finished (law 8).
    """
    needed = work.last_seqno if work.kind is Kind.STOP else work.first_seqno - 1
    if seqno < needed:
        raise OwnershipLost(
            f"the channel's tasks go on behind seqno {needed}, its position is {seqno}: the target has lost commits",
            channel=work.channel,
            seqno=seqno,
        )
