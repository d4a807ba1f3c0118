"""The states of a generation's channels and what they wait for, judged from its queue's tasks and the positions; reads
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pendulum

from airflow_parallel_apply.pipeline.coordinate.state import (
    CoordinatorState,
    MergePoint,
    Phase,
    StopReason,
    UnitFailure,
)
from airflow_parallel_apply.pipeline.coordinate.tasks import GROUP_PARTS, PARKED, Kind, OrderedWork, is_ordered
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.model.position import Position
from airflow_parallel_apply.queue.model import Task


class ChannelState(StrEnum):
    """The activity of a channel."""

    IDLE = "idle"
    WAITING = "waiting"
    APPLYING = "applying"
    STAGING = "staging"
    AT_BARRIER = "at barrier"
    AT_MERGE_POINT = "at merge point"
    BEHIND_FAILURE = "behind failure"
    FAILED = "failed"
    STOPPED = "stopped"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStatus:
    """One channel. `lag_rows`: planned rows that it has not committed; `rows`: those that it has."""

    channel: int
    seqno: int
    lag_transactions: int
    lag_rows: int
    rows: int
    state: ChannelState
    waits_for: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A generation as its queue shows it, if that was asked: the coordinator's state, and each channel's head."""

    is_known: bool = True
    state: CoordinatorState | None = None
    heads: tuple[Task | None, ...] = ()
    serial: Task | None = None

    @property
    def failure(self) -> str | None:
        """The message of the failure; None where nothing failed."""
        return None if self.state is None or self.state.failure is None else self.state.failure.message

    def head(self, channel: int) -> Task | None:
        """The next task of a channel, whoever holds it; None where its queue is empty."""
        return self.heads[channel] if channel < len(self.heads) else None


def phase_of(seen: Seen, clean_stop_seqno: int | None) -> str:
    """The generation's phase, or what its absence from the queue means. A run that stops at its own end, and not since
    somebody asked, is told as running until then.
    """
    if seen.state is not None:
        at_its_end = seen.state.phase is Phase.STOPPING and seen.state.stop_reason is StopReason.END
        return Phase.RUNNING if at_its_end else seen.state.phase
    if not seen.is_known:
        return "unknown"
    return "stopped" if clean_stop_seqno is not None else "idle"


def channel_status(
    seen: Seen, position: Position, rows: tuple[int, int], captured: int, planned: int, *, stopped: bool
) -> ChannelStatus:
    """Say what a channel does and what it waits for. `rows`: those that it has committed, and those that it lacks.
    `stopped`: the pipeline stands at a clean stop.
    """
    channel = position.channel
    what, waits_for = _doing(seen.head(channel), seen.state, position.seqno, planned, stopped=stopped)
    state = seen.state
    is_running = state is not None and state.phase is Phase.RUNNING
    if what is ChannelState.IDLE and is_running and _is_short(state, position.seqno, planned):
        # How far a channel may run ahead is bounded.
        what, waits_for = ChannelState.WAITING, "slower channels"
    if what in (ChannelState.IDLE, ChannelState.WAITING) and _is_staged(seen, channel, position.seqno, planned):
        what, waits_for = ChannelState.WAITING, "the commit of what is staged"
    if what is ChannelState.AT_BARRIER and all(map(_is_at_barrier, seen.heads)):
        waits_for = "the transaction that runs alone"
    if not seen.is_known:
        what, waits_for = ChannelState.UNKNOWN, ""
    return ChannelStatus(
        channel=channel,
        seqno=position.seqno,
        lag_transactions=max(captured - position.seqno, 0),
        lag_rows=rows[1],
        rows=rows[0],
        state=what,
        waits_for=waits_for,
    )


def _is_at_barrier(head: Task | None) -> bool:
    return head is not None and not head.err and head.at >= PARKED and head.value["kind"] == Kind.BARRIER


def _is_staged(seen: Seen, channel: int, seqno: int, planned: int) -> bool:
    """True if a channel has no part to stage any more of the groups that are fed."""
    state = seen.state
    return state is not None and state.in_groups and seen.head(channel) is None and _is_short(state, seqno, planned)


def _is_short(state: CoordinatorState | None, seqno: int, planned: int) -> bool:
    """True if there is more to do for a channel."""
    return seqno < (planned if state is None or state.until_seqno is None else min(planned, state.until_seqno))


def _is_behind(head: Task | None, state: CoordinatorState, seqno: int, planned: int) -> bool:
    """True if a channel waits because another one has failed: nothing above the failure is handed out, and no
    serialization point or merge point is reached.
    """
    if head is None:
        return _is_short(state, seqno, planned)
    if head.err or pendulum.now("UTC") < head.at < PARKED:
        return False
    return head.at >= PARKED or state.fails_below(head.value.get("first_seqno", NO_SEQNO))


def _failure(failure: UnitFailure) -> str:
    where = "" if failure.channel is None else f" of channel {failure.channel}"
    return f"the failure{where} at seqno {failure.seqno}"


def _doing(
    head: Task | None, state: CoordinatorState | None, seqno: int, planned: int, *, stopped: bool
) -> tuple[ChannelState, str]:
    if state is not None and state.failure is not None and _is_behind(head, state, seqno, planned):
        return ChannelState.BEHIND_FAILURE, f"a person: {_failure(state.failure)}"
    if head is None:
        if stopped or (state is not None and (state.phase is Phase.DRAINED or state.stop_seqno == seqno)):
            return ChannelState.STOPPED, ""
        return ChannelState.IDLE, "more changes" if state is not None else "a run"
    if head.err:
        return ChannelState.FAILED, "a person: " + head.err
    if _is_at_barrier(head):
        return ChannelState.AT_BARRIER, "the other channels"
    if head.at >= PARKED and state is not None and state.merging is not None:
        return ChannelState.AT_MERGE_POINT, f"a merge point: {_conflict(state.merging)}"
    if head.at > pendulum.now("UTC"):
        is_staging = head.value["kind"] in GROUP_PARTS
        return (ChannelState.STAGING if is_staging else ChannelState.APPLYING), ""
    return ChannelState.WAITING, "a lane"


def _conflict(point: MergePoint) -> str:
    table = "" if point.table is None else f" on {point.table}"
    return f"{point.reason} conflict{table} in channel {point.channel}"


def commit_under_way(task: Task | None) -> str | None:
    """Describe for people what of a group is under way; None for all other tasks of the queue `serial`."""
    if task is None or not is_ordered(task):
        return None
    ordered = OrderedWork.of_task(task)
    if ordered.kind is not Kind.COMMIT:
        return None
    group = f"transactions {ordered.work.first_seqno} to {ordered.work.last_seqno}"
    missing = ", ".join(str(channel) for channel in ordered.awaited if channel not in ordered.arrived)
    if missing and len(ordered.awaited) == 1:
        return f"{group} wait for channel {missing}, whose task stages all of them"
    if missing:
        return f"{group} wait for what channels {missing} stage"
    if pendulum.now("UTC") < task.at < PARKED:
        return f"{group} are being committed"
    return f"{group} wait for " + ("a person" if task.err else "a lane")
