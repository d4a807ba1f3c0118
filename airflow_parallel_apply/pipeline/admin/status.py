"""Reads a pipeline's progress by channel, from ledger, target, queue and log; changes nothing, holds up nobody."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, cast

from airflow_parallel_apply.pipeline.admin.channel_status import (
    ChannelStatus,
    Seen,
    channel_status,
    commit_under_way,
    phase_of,
)
from airflow_parallel_apply.pipeline.admin.status_warnings import (
    MUCH_RETAINED_BYTES,
    disk_warnings,
    pending_warnings,
    stream_warnings,
    torn_warnings,
)
from airflow_parallel_apply.pipeline.config import Endpoint, QueueEndpoint, RouterEndpoint, default_slot
from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState
from airflow_parallel_apply.pipeline.coordinate.tasks import Names
from airflow_parallel_apply.pipeline.copy.open import read_progress
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from airflow_parallel_apply.pipeline.ledger.protocol import PipelineState
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.model.copy_progress import CopyProgress
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side
from airflow_parallel_apply.pipeline.model.position import furthest, low_watermark
from airflow_parallel_apply.pipeline.model.rework import ReworkCount
from airflow_parallel_apply.pipeline.run.pipeline_queue import is_in_target, open_pipeline_queue
from airflow_parallel_apply.pipeline.store.open import store_status
from airflow_parallel_apply.pipeline.store.protocol import StoreStatus
from airflow_parallel_apply.pipeline.target.protocol import Target
from airflow_parallel_apply.queue.model import QueueUnavailable, Task
from airflow_parallel_apply.queue.protocol import Queue


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
    rework: tuple[ReworkCount, ...] = ()
    """All work that was done in vain."""
    oldest_time: datetime | None = None
    """Commit time of the first transaction that some channel lacks; None without the log, or when there is none."""
    log_bytes: int | None = None
    """Size of the log's row files; None without the log."""
    warnings: tuple[Finding, ...] = ()
    channels: tuple[ChannelStatus, ...]
    consistency: str | None = None
    """When the present run's changes become visible; None without a run."""
    epoch_protocol: str | None = None
    """How the present run's groups become visible, under `auto` its last one; None where there are none."""
    commit: str | None = None
    """Under epoch consistency: what changes the target next, and what it waits for."""
    store_choice: str | None = None
    """The store that the present run's channels are read through, and why; None without a run."""
    store: StoreStatus | None = None
    """The part that the store holds beside the log; None without the log, and for a store that holds nothing."""
    copy: CopyProgress | None = None
    """The initial copy, where there was one. While it goes on there is nothing else to tell."""

    def to_json(self) -> dict[str, Any]:
        """Times as ISO 8601."""
        fields = asdict(self)
        fields["copy"] = self.copy.to_json() if self.copy is not None else None
        fields["warnings"] = [warning.to_json() for warning in self.warnings]
        return cast("dict[str, Any]", _plain(fields))


def read_status(
    target: Endpoint,
    pipeline: str,
    log_url: str | None = None,
    source: Endpoint | None = None,
    *,
    queue: QueueEndpoint | None = None,
    router: RouterEndpoint | None = None,
    much_retained_bytes: int = MUCH_RETAINED_BYTES,
) -> PipelineStatus:
    """Read it. With `source`, warn of its stream; of what the source keeps for it from `much_retained_bytes` on. A
    `queue` that is not the target's, and does not answer or was not named, is a warning: what counts is told all the
    same. `router`: that of the store `memory`, where it is not the embedded one of this host.

    Errors: `ConfigurationError` when the target knows no such pipeline.
    """
    with closing(open_pipeline(target, pipeline)) as reading:
        state = reading.ledger.state()
        copy = read_progress(target, pipeline, log_url)
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
        low, high = low_watermark(positions), furthest(positions)
        captured, captured_time, oldest_time, log_bytes, store = planned, None, None, None, None
        stream = default_slot(pipeline)
        warnings += torn_warnings(low, high, is_owned=state.is_owned)
        warnings += pending_warnings(reading.target.pending(), is_owned=state.is_owned)
        warnings += reading.target.held_up()
        if log_url is not None:
            reader = open_reader(log_url)
            log, stream = reader.state(), reader.identity.stream
            captured, captured_time = log.last_seqno, log.last_commit_time
            log_bytes = sum(segment.file_bytes for segment in log.segments)
            if log.purged_seqno <= low < captured:
                oldest_time = reader.transactions(low, low + 1).column("commit_time")[0].as_py()
            store = store_status(reader, pipeline, reading.ledger.routing(), router)
            if reader.root is not None:
                warnings += disk_warnings(reader.root, log_bytes)
        if source is not None:
            warnings += stream_warnings(source, stream, much_retained_bytes=much_retained_bytes)
        return PipelineStatus(
            pipeline=pipeline,
            owner=state.owner,
            generation=state.generation,
            lease_until=state.lease_until,
            phase=phase_of(seen, state.clean_stop_seqno),
            captured_seqno=captured,
            captured_time=captured_time,
            planned_seqno=planned,
            low_watermark=low,
            torn_from=low + 1 if high > low else None,
            torn_to=high if high > low else None,
            failure=seen.failure,
            consistency=None if seen.state is None else seen.state.consistency,
            epoch_protocol=None if seen.state is None else seen.state.told_protocol,
            commit=commit_under_way(seen.serial),
            store_choice=None if seen.state is None else seen.state.store or None,
            oldest_time=oldest_time,
            log_bytes=log_bytes,
            store=store,
            warnings=tuple(warnings),
            rework=reading.ledger.rework(),
            channels=tuple(
                channel_status(seen, position, counts, captured, planned, stopped=state.clean_stop_seqno is not None)
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
) -> tuple[Seen, list[Finding]]:
    """Read the generation's tasks, or find why they cannot be read."""
    if state.queue and (queue is None or queue.place != state.queue):
        if state.clean_stop_seqno is not None:
            return Seen(), []
        what = f"the run's queue {state.queue} was not named, so the state of its channels is not known"
        return Seen(is_known=False), [_queue_warning(state.queue, what, "Name it: --queue.")]
    if not state.queue and not is_in_target(state):
        return Seen(), []
    tasks = open_pipeline_queue(target, endpoint, queue if state.queue else None, state.pipeline)
    with closing(tasks):
        try:
            return _seen(tasks.queue, tasks.names(state.generation), state.channels), []
        except QueueUnavailable as error:
            if not state.queue:
                raise
            note = "The state of its channels is not known. No run goes on without the queue."
            return Seen(is_known=False), [_queue_warning(state.queue, str(error), note)]


def _seen(queue: Queue, names: Names, channels: int) -> Seen:
    found = queue.tasks(names.coordinator, ids=[names.coordinator_id])
    return Seen(
        state=CoordinatorState.from_json(found[0].value) if found else None,
        heads=tuple(_head(queue, names.channel(channel)) for channel in range(channels)),
        serial=_head(queue, names.serial),
    )


def _head(queue: Queue, name: str) -> Task | None:
    return next(iter(queue.tasks(name, limit=1)), None)


def _queue_warning(place: str, what: str, note: str) -> Finding:
    return Finding(severity=Severity.WARNING, side=Side.QUEUE, where=place, what=what, note=note)
