"""Groups of epochs under epoch consistency: staged by all channels side by side, committed by one lane, in order.

::

    fed ──▶ channels: what each of them stages        serial: the commit, parked
    a lane has staged a channel's rows ── arrive ──▶ its task is gone, what was staged stands in the commit
    the last one arrives ─────────────── arrive ──▶ the commit is free
    a lane has committed ────────────── finish ──▶ the commit is gone; what is behind it is next

The queue `serial` is strict: a parked task holds up all that is behind it. So commits, serial epochs and the stop
happen in their order whichever of them is complete first, and nothing but them moves a position.

Channels that stand at different seqnos, as a run of channel consistency that failed leaves them, need no merge point:
the first group brings them together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState
from airflow_parallel_apply.pipeline.coordinate.state_task import MAX_RACES, StateTask
from airflow_parallel_apply.pipeline.coordinate.tasks import PARKED, ChannelWork, Kind, Names, OrderedWork
from airflow_parallel_apply.pipeline.errors import OwnershipLost, Unavailable
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.model.epoch import Epoch
from airflow_parallel_apply.pipeline.model.position import Position, low_watermark
from airflow_parallel_apply.queue.model import Change, DependencyError, Insert, Task
from airflow_parallel_apply.queue.protocol import Queue

_STAGED_COUNT: Final = 16


class Groups:
    """The groups of one generation. Not thread-safe where `session` is not."""

    def __init__(
        self, queue: Queue, session: PipelineSession, names: Names, state_task: StateTask, *, claimant: str
    ) -> None:
        self._queue = queue
        self._session = session
        self._names = names
        self._state_task = state_task
        self._claimant = claimant

    def arrive(self, task: Task, result: Any = None) -> None:
        """Finish a channel's task, held by the caller, with what it staged; the last one awaited frees what waits. A
        marker of a serial epoch stays, parked, and holds its channel up.

        Errors: `DependencyError` when the task is another lane's; `OwnershipLost` when nothing waits for it any more:
        others have started over.
        """
        work = ChannelWork.of_task(task)
        for _ in range(MAX_RACES):
            found = self._queue.tasks(self._names.serial, ids=[self._names.serial_id(work.epoch)])
            if not found or not _is_awaited(OrderedWork.of_task(found[0]), work):
                self._queue.modify(claimant=self._claimant, delete=[task.ref])
                raise OwnershipLost(f"nothing waits for what channel {work.channel} has of group {work.epoch}")
            ordered = OrderedWork.of_task(found[0])
            is_marker = work.kind is Kind.BARRIER
            parked = Change(ref=task.ref, value=task.value, at=PARKED, claimed=False)
            if work.channel in ordered.arrived:
                # It was handed out twice, since a target went back; what came first is as good. Whoever holds what
                # waits for it judges that by the positions.
                self._queue.modify(
                    claimant=self._claimant,
                    change=[parked] if is_marker else [],
                    delete=[] if is_marker else [task.ref],
                )
                return
            ordered = ordered.arrive(work.channel, result)
            waiting = Change(
                ref=found[0].ref,
                value=ordered.to_json(),
                at=None if ordered.is_complete else PARKED,
                claimed=False,
            )
            try:
                self._queue.modify(
                    claimant=self._claimant,
                    change=[waiting, parked] if is_marker else [waiting],
                    delete=[] if is_marker else [task.ref],
                )
            except DependencyError as error:
                if any(failure.task_id == task.task_id for failure in (*error.changes, *error.deletes)):
                    raise
                continue
            return
        raise Unavailable("the group changes faster than this lane can follow", op="arrive")

    def finish(self, task: Task) -> None:
        """A commit or a serial epoch, held by the caller, is done: it goes, with its markers in the channels."""
        ordered = OrderedWork.of_task(task)
        heads = [
            head
            for channel in (ordered.awaited if ordered.kind is Kind.SERIAL else ())
            for head in self._queue.tasks(self._names.channel(channel), limit=1)
        ]
        markers = [
            head.ref
            for head in heads
            if head.value["kind"] == Kind.BARRIER and head.value["epoch"] == ordered.work.epoch
        ]
        self._queue.modify(claimant=self._claimant, delete=[task.ref, *markers])

    def refused(self) -> None:
        """A group that was prepared could not be committed so: those behind it are staged for a while, since what was
        in its way, such as values that change hands between channels, is likely to be in theirs.
        """
        self._state_task.update(lambda state: (state.staging(_STAGED_COUNT), []))

    def stop(self, task: Task) -> None:
        """All channels stand at the stop, held by the caller: the generation is drained. Errors: `OwnershipLost` where
        one does not.
        """
        seqno = OrderedWork.of_task(task).work.last_seqno

        def step(state: CoordinatorState) -> tuple[CoordinatorState, list[Insert]]:
            if any(at.seqno != seqno for at in self._session.target.positions()):
                raise OwnershipLost(f"the target has lost commits: not all channels are at seqno {seqno}")
            return state.drained(), []

        self._state_task.update(step, delete=[task.ref])


def _is_awaited(ordered: OrderedWork, work: ChannelWork) -> bool:
    """True if it waits for a channel's task of just this range."""
    same = (ordered.work.first_seqno, ordered.work.last_seqno) == (work.first_seqno, work.last_seqno)
    return same and work.channel in ordered.awaited and (ordered.kind is Kind.SERIAL) == (work.kind is Kind.BARRIER)


def misfit_of_groups(
    state: CoordinatorState,
    serial: Sequence[Task],
    channels: Mapping[int, Sequence[Task]],
    positions: Sequence[Position],
    planned: Mapping[int, Epoch],
) -> str | None:
    """Say in words what of the generation's tasks does not fit positions and plan; None if everything does. `serial`
    was read after `channels`, and the positions last.
    """
    low = low_watermark(positions)
    reached = low
    if state.stop_seqno is not None and low > state.stop_seqno:
        return f"all channels are at seqno {low}, and their stop at {state.stop_seqno}"
    for task in serial:
        ordered = OrderedWork.of_task(task)
        work = ordered.work
        if ordered.kind is Kind.STOP:
            if state.stop_seqno != work.last_seqno:
                return "the stop belongs to a stop that no longer exists"
        elif work.last_seqno <= low:
            continue
        elif work.first_seqno > reached + 1:
            return f"what is to be committed goes on at {work.first_seqno}, behind {reached}"
        elif not _is_planned(planned, work.epoch, work.last_seqno):
            return f"epoch {work.epoch} is no longer planned"
        elif missing := _missing(ordered, channels):
            return f"what ends at seqno {work.last_seqno} waits for channel {missing[0]}, which knows nothing of it"
        else:
            reached = work.last_seqno
    if reached < state.fed_seqno:
        return f"what is to be committed ends at {reached}, though {state.fed_seqno} was fed"
    return None


def _missing(ordered: OrderedWork, channels: Mapping[int, Sequence[Task]]) -> list[int]:
    """The channels that neither have arrived nor have a task that will."""
    return [
        channel
        for channel in ordered.awaited
        if channel not in ordered.arrived
        and not any(_is_awaited(ordered, ChannelWork.of_task(task)) for task in channels[channel])
    ]


def _is_planned(planned: Mapping[int, Epoch], number: int, last_seqno: int) -> bool:
    epoch = planned.get(number)
    return epoch is not None and epoch.last_seqno == last_seqno
