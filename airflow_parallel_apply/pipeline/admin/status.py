"""Reads a pipeline's progress by channel, from ledger, target, queue and log; changes nothing, holds up nobody."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, cast

import pendulum

from airflow_parallel_apply.pipeline.admin.status_warnings import (
    MUCH_WAL_BYTES,
    disk_warnings,
    slot_warnings,
    torn_warnings,
)
from airflow_parallel_apply.pipeline.config import Endpoint, QueueEndpoint, default_slot
from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState, MergePoint, Phase, UnitFailure
from airflow_parallel_apply.pipeline.coordinate.tasks import PARKED, Kind, Names, OrderedWork, is_ordered
from airflow_parallel_apply.pipeline.copy.open import read_progress
from airflow_parallel_apply.pipeline.copy.protocol import CopyProgress
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from airflow_parallel_apply.pipeline.ledger.protocol import ConflictCount, PipelineState
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side
from airflow_parallel_apply.pipeline.model.position import Position, low_watermark
from airflow_parallel_apply.pipeline.run.pipeline_queue import is_in_target, open_pipeline_queue
from airflow_parallel_apply.pipeline.target.protocol import Target
from airflow_parallel_apply.queue.model import QueueUnavailable, Task
from airflow_parallel_apply.queue.protocol import Queue


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
class PipelineStatus:
    """A pipeline. `torn_from` … `torn_to`: transactions that some channels have and others have not (None: none)."""

    pipeline: str
    owner: str | None
    generation: int
    lease_until: datetime | None
    phase: str
    captured_seqno: int
    captured_time: datetime | None
    planned_seqno: int
    low_watermark: int
    torn_from: int | None
    torn_to: int | None
    failure: str | None
    conflicts: tuple[ConflictCount, ...] = ()
    oldest_time: datetime | None = None
    """Commit time of the first transaction that some channel lacks; None without the log, or when there is none."""
    log_bytes: int | None = None
    """Size of the log's row files; None without the log."""
    warnings: tuple[Finding, ...] = ()
    channels: tuple[ChannelStatus, ...]
    consistency: str | None = None
    """When the present run's changes become visible; None without a run."""
    commit: str | None = None
    """Under epoch consistency: what changes the target next, and what it waits for."""
    copy: CopyProgress | None = None
    """The initial copy, where there was one. While it goes on there is nothing else to tell."""

    def to_json(self) -> dict[str, Any]:
        """Times as ISO 8601."""
        fields = asdict(self)
        fields["copy"] = self.copy.to_json() if self.copy is not None else None
        fields["warnings"] = [warning.to_json() for warning in self.warnings]
        return cast("dict[str, Any]", _plain(fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A generation as its queue shows it, if that was asked: the coordinator's state, and each channel's head."""

    is_known: bool = True
    state: CoordinatorState | None = None
    heads: tuple[Task | None, ...] = ()
    serial: Task | None = None

    @property
    def failure(self) -> str | None:
        return None if self.state is None or self.state.failure is None else self.state.failure.message

    def head(self, channel: int) -> Task | None:
        return self.heads[channel] if channel < len(self.heads) else None


def read_status(
    target: Endpoint,
    pipeline: str,
    log_url: str | None = None,
    source: Endpoint | None = None,
    *,
    queue: QueueEndpoint | None = None,
    much_wal_bytes: int = MUCH_WAL_BYTES,
) -> PipelineStatus:
    """Read it. With `source`, warn of its slot; of WAL that it holds back from `much_wal_bytes` on. A `queue` that is
    not the target's, and does not answer or was not named, is a warning: what counts is told all the same.

    Errors: `ConfigurationError` when the target knows no such pipeline.
    """
    with closing(open_pipeline(target, pipeline)) as reading:
        state = reading.ledger.state()
        copy = read_progress(target, pipeline)
        if state is None and copy is not None:
            return _copying(pipeline, copy)
        if state is None:
            raise ConfigurationError(
                "the target knows no such pipeline", pipeline=pipeline, hint="Its first run registers it."
            )
        positions = reading.target.positions()
        planned = max(reading.ledger.planned_seqno(), low_watermark(positions))
        rows = reading.ledger.channel_rows(positions)
        seen, warnings = _look(reading.target, target, queue, state)
        low, high = low_watermark(positions), max((position.seqno for position in positions), default=-1)
        captured, captured_time, oldest_time, log_bytes = planned, None, None, None
        stream = default_slot(pipeline)
        warnings += torn_warnings(low, high, is_owned=state.is_owned)
        if log_url is not None:
            reader = open_reader(log_url)
            log, stream = reader.state(), reader.identity.slot
            captured, captured_time = log.last_seqno, log.last_commit_time
            log_bytes = sum(segment.file_bytes for segment in log.segments)
            if log.purged_seqno <= low < captured:
                oldest_time = reader.transactions(low, low + 1).column("commit_time")[0].as_py()
            warnings += disk_warnings(log_url, log_bytes)
        if source is not None:
            warnings += slot_warnings(source, stream, much_wal_bytes=much_wal_bytes)
        return PipelineStatus(
            pipeline=pipeline,
            owner=state.owner,
            generation=state.generation,
            lease_until=state.lease_until,
            phase=_phase(seen, state.clean_stop_seqno),
            captured_seqno=captured,
            captured_time=captured_time,
            planned_seqno=planned,
            low_watermark=low,
            torn_from=low + 1 if high > low else None,
            torn_to=high if high > low else None,
            failure=seen.failure,
            consistency=None if seen.state is None else seen.state.consistency,
            commit=_commit(seen.serial),
            oldest_time=oldest_time,
            log_bytes=log_bytes,
            warnings=tuple(warnings),
            conflicts=reading.ledger.conflicts(),
            channels=tuple(
                _channel(seen, position, counts, captured, planned, stopped=state.clean_stop_seqno is not None)
                # A routing that changed between the two reads may leave one of them longer.
                for position, counts in zip(positions, rows, strict=False)
            ),
            copy=copy,
        )


def _copying(pipeline: str, copy: CopyProgress) -> PipelineStatus:
    """The status of a pipeline that is not registered yet, because its copy has not ended."""
    return PipelineStatus(
        pipeline=pipeline,
        owner=None,
        generation=0,
        lease_until=None,
        phase=copy.phase,
        captured_seqno=NO_SEQNO,
        captured_time=None,
        planned_seqno=NO_SEQNO,
        low_watermark=NO_SEQNO,
        torn_from=None,
        torn_to=None,
        failure=copy.failure,
        conflicts=(),
        channels=(),
        copy=copy,
    )


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.isoformat() if isinstance(value, datetime) else value


def _look(
    target: Target, endpoint: Endpoint, queue: QueueEndpoint | None, state: PipelineState
) -> tuple[_Seen, list[Finding]]:
    """Read the generation's tasks, or find why they cannot be read."""
    if state.queue and (queue is None or queue.place != state.queue):
        if state.clean_stop_seqno is not None:
            return _Seen(), []
        what = f"the run's queue {state.queue} was not named, so the state of its channels is not known"
        return _Seen(is_known=False), [_queue_warning(state.queue, what, "Name it: --queue.")]
    if not state.queue and not is_in_target(state):
        return _Seen(), []
    tasks = open_pipeline_queue(target, endpoint, queue if state.queue else None, state.pipeline)
    with closing(tasks):
        try:
            return _seen(tasks.queue, tasks.names(state.generation), state.channels), []
        except QueueUnavailable as error:
            if not state.queue:
                raise
            note = "The state of its channels is not known. No run goes on without the queue."
            return _Seen(is_known=False), [_queue_warning(state.queue, str(error), note)]


def _seen(queue: Queue, names: Names, channels: int) -> _Seen:
    found = queue.tasks(names.coordinator, ids=[names.coordinator_id])
    return _Seen(
        state=CoordinatorState.from_json(found[0].value) if found else None,
        heads=tuple(_head(queue, names.channel(channel)) for channel in range(channels)),
        serial=_head(queue, names.serial),
    )


def _head(queue: Queue, name: str) -> Task | None:
    return next(iter(queue.tasks(name, limit=1)), None)


def _commit(task: Task | None) -> str | None:
    """Describe for people what of a group is under way; None for all other tasks of the queue `serial`."""
    if task is None or not is_ordered(task):
        return None
    ordered = OrderedWork.of_task(task)
    if ordered.kind is not Kind.COMMIT:
        return None
    group = f"transactions {ordered.work.first_seqno} to {ordered.work.last_seqno}"
    missing = ", ".join(str(channel) for channel in ordered.awaited if channel not in ordered.arrived)
    if missing:
        return f"{group} wait for what channels {missing} stage"
    if pendulum.now("UTC") < task.at < PARKED:
        return f"{group} are being committed"
    return f"{group} wait for " + ("a person" if task.err else "a lane")


def _queue_warning(place: str, what: str, note: str) -> Finding:
    return Finding(severity=Severity.WARNING, side=Side.QUEUE, where=place, what=what, note=note)


def _phase(seen: _Seen, clean_stop_seqno: int | None) -> str:
    if seen.state is not None:
        return seen.state.phase
    if not seen.is_known:
        return "unknown"
    return "stopped" if clean_stop_seqno is not None else "idle"


def _channel(
    seen: _Seen, position: Position, rows: tuple[int, int], captured: int, planned: int, *, stopped: bool
) -> ChannelStatus:
    channel = position.channel
    what, waits_for = _doing(seen.head(channel), seen.state, position.seqno, planned, stopped=stopped)
    state = seen.state
    is_running = state is not None and state.phase is Phase.RUNNING
    if what is ChannelState.IDLE and is_running and _is_short(state, position.seqno, planned):
        # How far a channel may run ahead is bounded.
        what, waits_for = ChannelState.WAITING, "slower channels"
    if what in (ChannelState.IDLE, ChannelState.WAITING) and _is_staged(seen, channel, position.seqno, planned):
        what, waits_for = ChannelState.WAITING, "the commit of what is staged"
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


def _is_staged(seen: _Seen, channel: int, seqno: int, planned: int) -> bool:
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
        if stopped or (state is not None and state.phase is Phase.DRAINED):
            return ChannelState.STOPPED, ""
        return ChannelState.IDLE, "more changes" if state is not None else "a run"
    if head.err:
        return ChannelState.FAILED, "a person: " + head.err
    if head.at >= PARKED:
        if head.value["kind"] == Kind.BARRIER:
            return ChannelState.AT_BARRIER, "the other channels"
        if state is not None and state.merging is not None:
            return ChannelState.AT_MERGE_POINT, f"a merge point: {_conflict(state.merging)}"
    if head.at > pendulum.now("UTC"):
        is_staging = head.value["kind"] in (Kind.STAGE, Kind.STAGE_ALL)
        return (ChannelState.STAGING if is_staging else ChannelState.APPLYING), ""
    return ChannelState.WAITING, "a lane"


def _conflict(point: MergePoint) -> str:
    table = "" if point.table is None else f" on {point.table}"
    return f"{point.reason} conflict{table} in channel {point.channel}"
