"""A run, step by step, as Airflow's tasks call it: prepare, capture, open, apply (a lane), close.

Each step may be repeated, killed and repeated. What they share lies in the target and the log (law 8); what they
hand to each other through XCom is a copy for people and for addressing.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, Final
from uuid import uuid4

import pendulum

from airflow_parallel_apply.pipeline.apply.capture_turn import CAPTURE_ROLE, CaptureTurns
from airflow_parallel_apply.pipeline.apply.keeper import Keeper
from airflow_parallel_apply.pipeline.apply.lane import Lane, LaneSignals, generation_over
from airflow_parallel_apply.pipeline.apply.report import LaneReport
from airflow_parallel_apply.pipeline.apply.retry import retrying
from airflow_parallel_apply.pipeline.apply.stage import Stage
from airflow_parallel_apply.pipeline.config import DdlPolicy, Endpoint, PipelineConfig, Start
from airflow_parallel_apply.pipeline.coordinate.coordinator import Coordinator
from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState, Phase
from airflow_parallel_apply.pipeline.coordinate.tasks import Names
from airflow_parallel_apply.pipeline.errors import (
    ConfigurationError,
    FatalError,
    FenceBusy,
    LogError,
    OwnershipLost,
    ParallelApplyError,
    TargetError,
)
from airflow_parallel_apply.pipeline.log.open import log_exists, open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.plan.book import extend_plan
from airflow_parallel_apply.pipeline.plan.bounds import last_seqno_at, parse_lsn
from airflow_parallel_apply.pipeline.position import Position, all_equal, low_watermark
from airflow_parallel_apply.pipeline.source.connect import open_source
from airflow_parallel_apply.pipeline.source.protocol import CaptureStep, Prepared
from airflow_parallel_apply.pipeline.store.open import open_store
from airflow_parallel_apply.pipeline.target.connect import open_target
from airflow_parallel_apply.pipeline.target.protocol import FenceState, RunBounds, Target
from airflow_parallel_apply.queue.connect import open_queue
from airflow_parallel_apply.queue.model import DependencyError, TaskRef
from airflow_parallel_apply.queue.postgres import migrate as migrate_queue
from airflow_parallel_apply.queue.protocol import Queue

_logger = logging.getLogger(__name__)

FIRST_CAPTURE_CHANGES: Final = 200_000
"""What the capture task itself brings; the lanes capture the rest while they apply."""

_OPEN_LEASE: Final = timedelta(minutes=2)
"""Bridges the time until the first lane renews; only another run's patience, never correctness, depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureReport:
    """What the capture task did."""

    prepared: Prepared
    bounds: RunBounds
    captured_lsn: int
    last_seqno: int
    rows: int
    done: bool
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """For XCom."""
        return {
            "log_id": self.prepared.log_id,
            "created": list(self.prepared.created),
            "until_lsn": self.bounds.until_lsn,
            "captured_lsn": self.captured_lsn,
            "last_seqno": self.last_seqno,
            "rows": self.rows,
            "done": self.done,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRun:
    """A run under its generation: what lanes and close need to find it."""

    pipeline: str
    run_id: str
    generation: int
    log_id: str
    until_lsn: int
    until_seqno: int | None
    nothing_to_do: bool
    session_id: str
    lanes: int
    coordinator_state: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """For XCom."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> OpenedRun:
        """Inverse of `to_json`."""
        return cls(**value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedRun:
    """A clean shutdown: every channel at one seqno, nothing claimed."""

    pipeline: str
    generation: int
    stop_seqno: int
    channels: int
    rows: int
    stopped_early: bool

    def to_json(self) -> dict[str, Any]:
        """For XCom."""
        return {name: getattr(self, name) for name in self.__slots__}


def prepare(config: PipelineConfig, source: Endpoint, target: Endpoint) -> Prepared:
    """Check both sides, then create what the pipeline needs on its first run; says what it created.

    Nothing is created before the tables of both sides are checked. The slot comes last: it holds back the source's
    WAL, and everything else left by a failed start is empty and harmless.
    """
    with closing(open_source(source, config)) as reading, closing(_target(target, config)) as writing:
        fence = writing.fence() if writing.is_installed() else None
        first = fence is None
        if fence is not None:
            _require_log(config, fence.log_id)
        require_empty = first and config.start is Start.EMPTY
        if first or config.ddl is DdlPolicy.REFUSE:
            # Else the target may lack what DDL on its way will bring.
            writing.check(reading.relations(), channels=config.channels, require_empty=require_empty)
        created = (*writing.migrate(), *migrate_queue(target.dsn))
        prepared = reading.prepare()
        # Another run may own the pipeline: then it is registered, and routed as its owner likes.
        with suppress(FenceBusy):
            writing.route(None, log_id=prepared.log_id, routing_digest=config.routing_digest, channels=config.channels)
        return Prepared(
            log_id=prepared.log_id,
            slot=prepared.slot,
            publication=prepared.publication,
            tables=prepared.tables,
            created=(*prepared.created, *(f"target: {line}" for line in created)),
        )


def capture(
    config: PipelineConfig,
    source: Endpoint,
    target: Endpoint,
    *,
    run_id: str,
    until: str,
    cancelled: Callable[[], bool],
    report: Callable[[CaptureStep], None],
) -> CaptureReport:
    """Prepare, freeze the run's bound, and bring the first part of the backlog into the log."""
    began = monotonic()
    prepared = prepare(config, source, target)
    with closing(open_source(source, config)) as reading, closing(_target(target, config)) as writing:
        bounds = writing.freeze_run(run_id, _until_lsn(until, reading.current_lsn()))
        log = open_reader(config.log_url)
        rows = 0
        # Another run's lanes capture for themselves, and would only be in each other's way with us.
        if log.state().captured_lsn < bounds.until_lsn and not _is_owned(writing.fence()):
            step = retrying(
                lambda: reading.capture(bounds.until_lsn, max_changes=FIRST_CAPTURE_CHANGES, cancelled=cancelled),
                on_retry=_tell_unless(cancelled),
            )
            report(step)
            rows = step.row_count
        _settle(log, writing, bounds)
        state = log.state()
        return CaptureReport(
            prepared=prepared,
            bounds=bounds,
            captured_lsn=state.captured_lsn,
            last_seqno=state.last_seqno,
            rows=rows,
            done=state.captured_lsn >= bounds.until_lsn,
            seconds=monotonic() - began,
        )


def open_run(config: PipelineConfig, source: Endpoint, target: Endpoint, *, owner: str, run_id: str) -> OpenedRun:
    """Take the fence, recover from positions and plan, seed the queue. `FenceBusy` while another run is alive."""
    log = open_reader(config.log_url)
    with closing(_target(target, config)) as writing, closing(open_queue(target.dsn)) as queue:
        fence = writing.acquire(log_id=log.identity.log_id, owner=owner, lease=max(config.lease, _OPEN_LEASE))
        try:
            with closing(open_source(source, config)) as reading:
                bounds = writing.freeze_run(run_id, reading.current_lsn())
                if config.ddl is DdlPolicy.REFUSE:
                    writing.check(reading.relations(), channels=config.channels, require_empty=False)
            return _seed(config, log, writing, queue, fence.generation, bounds)
        except BaseException:
            # Nothing was begun: the next run need not wait for a lease to end.
            with suppress(ParallelApplyError):
                writing.release(fence.generation, clean_stop_seqno=_stopped_at(writing.positions()))
            raise


def _seed(
    config: PipelineConfig, log: LogReader, target: Target, queue: Queue, generation: int, bounds: RunBounds
) -> OpenedRun:
    """Under the fence: route, plan, and put into the queue what positions and plan say is left."""
    target.route(generation, log_id=log.identity.log_id, routing_digest=config.routing_digest, channels=config.channels)
    bounds = _settle(log, target, bounds)
    extend_plan(log, target, config)
    low = low_watermark(target.positions())
    until = bounds.until_seqno
    names = Names(pipeline=config.pipeline, generation=generation)
    state = CoordinatorState(
        phase=Phase.RUNNING,
        channels=config.channels,
        fed_epoch=target.last_epoch_at(low),
        fed_seqno=low,
        until_seqno=until,
    )
    nothing_to_do = until is not None and low >= until
    if not nothing_to_do:
        coordinator = Coordinator(queue, target, names, claimant=_claimant("open"))
        _sweep(queue, config.pipeline, below=generation)
        coordinator.seed(state, capture=until is None)
        state = coordinator.feed()
    return OpenedRun(
        pipeline=config.pipeline,
        run_id=bounds.run_id,
        generation=generation,
        log_id=log.identity.log_id,
        until_lsn=bounds.until_lsn,
        until_seqno=until,
        nothing_to_do=nothing_to_do,
        session_id=str(uuid4()),
        lanes=0 if nothing_to_do else config.lane_count,
        coordinator_state=state.to_json(),
    )


def apply(
    opened: OpenedRun,
    config: PipelineConfig,
    source: Endpoint,
    target: Endpoint,
    *,
    lane: int,
    stage: Stage,
    signals: LaneSignals,
) -> LaneReport:
    """Run one lane until every channel is stopped. Errors: `OwnershipLost` when the generation is over."""
    log = _shared_log(config, opened)
    report = LaneReport(lane=lane, generation=opened.generation)
    claimant = _claimant(f"lane {lane}")
    names = Names(pipeline=config.pipeline, generation=opened.generation)
    bounds = RunBounds(run_id=opened.run_id, until_lsn=opened.until_lsn, until_seqno=opened.until_seqno, opened=_now())
    with ExitStack() as stack:
        queue = stack.enter_context(closing(open_queue(target.dsn)))
        targets = [stack.enter_context(closing(_target(target, config))) for _ in range(3)]
        lost: list[str] = []

        def on_lost(what: str) -> None:
            lost.append(what)
            if what != CAPTURE_ROLE:
                stage.cancel()

        keeper = stack.enter_context(
            Keeper(
                queue,
                claimant=claimant,
                lease=config.lease,
                renew_fence=lambda: targets[2].renew_fence(opened.generation, config.lease),
                on_lost=on_lost,
            )
        )
        turns = CaptureTurns(
            config=config,
            bounds=bounds,
            claimant=claimant,
            source=lambda: open_source(source, config),
            target=targets[1],
            log=open_reader(config.log_url),
            coordinator=Coordinator(queue, targets[1], names, claimant=claimant),
            keeper=keeper,
            report=report,
        )

        def background_failure() -> ParallelApplyError | None:
            if "fence" in lost:
                return generation_over(config.pipeline, opened.generation)
            return turns.failure()

        turns.start()
        stack.callback(turns.stop)
        Lane(
            config=config,
            lane=lane,
            claimant=claimant,
            coordinator=Coordinator(queue, targets[0], names, claimant=claimant),
            target=targets[0],
            log=log,
            store=open_store(config.store, log),
            stage=stage,
            keeper=keeper,
            signals=signals,
            report=report,
            background_failure=background_failure,
        ).run()
        # Nobody renews until close comes, which may wait for a slot.
        with suppress(ParallelApplyError):
            targets[0].renew_fence(opened.generation, max(config.lease, _OPEN_LEASE))
    return report


def close_run(
    opened: OpenedRun | None,
    config: PipelineConfig,
    target: Endpoint,
    lane_reports: Sequence[dict[str, Any]],
) -> ClosedRun:
    """The only judge: a clean shutdown by the target's positions, or the first error. Releases the fence either way."""
    if opened is None:
        raise FatalError("the run was not opened", op="close", pipeline=config.pipeline, hint="See the task open.")
    with closing(_target(target, config)) as writing, closing(open_queue(target.dsn)) as queue:
        fence = writing.fence()
        if fence is None or fence.generation != opened.generation:
            raise generation_over(config.pipeline, opened.generation)
        positions = writing.positions()
        rows = sum(int(report.get("rows", 0)) for report in lane_reports)
        if opened.nothing_to_do:
            stop_seqno, early = low_watermark(positions), False
            writing.release(opened.generation, clean_stop_seqno=_stopped_at(positions))
        elif fence.clean_stop_seqno is not None:
            # An earlier close of this generation came that far; its tasks may be gone.
            stop_seqno, early = fence.clean_stop_seqno, _is_early(fence.clean_stop_seqno, writing, opened)
        else:
            stop_seqno, early = _judge(opened, config, writing, queue)
            writing.release(opened.generation, clean_stop_seqno=stop_seqno)
        _sweep(queue, config.pipeline, below=opened.generation + 1)
        return ClosedRun(
            pipeline=config.pipeline,
            generation=opened.generation,
            stop_seqno=stop_seqno,
            channels=len(positions),
            rows=rows,
            stopped_early=early,
        )


def request_stop(config_pipeline: str, target: Endpoint) -> CoordinatorState:
    """Put stop markers behind what is fed, in the pipeline's present generation; idempotent."""
    with closing(open_target(target, config_pipeline)) as writing, closing(open_queue(target.dsn)) as queue:
        fence = writing.fence() if writing.is_installed() else None
        if fence is None:
            raise FatalError(
                "no such pipeline in this target",
                op="stop",
                pipeline=config_pipeline,
                hint="See parallel-apply status.",
            )
        if fence.owner is None:
            raise FatalError("no run is under way: there is nothing to stop", op="stop", pipeline=config_pipeline)
        names = Names(pipeline=config_pipeline, generation=fence.generation)
        return Coordinator(queue, writing, names, claimant=_claimant("stop")).request_stop()


def _judge(opened: OpenedRun, config: PipelineConfig, target: Target, queue: Queue) -> tuple[int, bool]:
    """The stop's seqno where the shutdown is clean. Everything else is raised, after the fence is released."""
    names = Names(pipeline=config.pipeline, generation=opened.generation)
    coordinator = Coordinator(queue, target, names, claimant=_claimant("close"))
    try:
        state = coordinator.state()
    except OwnershipLost:
        target.release(opened.generation, clean_stop_seqno=None)
        raise
    positions = target.positions()
    if state.phase is Phase.DRAINED and all(position.seqno == state.stop_seqno for position in positions):
        return positions[0].seqno, _is_early(positions[0].seqno, target, opened)
    target.release(opened.generation, clean_stop_seqno=None)
    if state.failure is not None:
        raise TargetError(f"{state.failure.message} Then clear open with everything downstream.")
    reached = ", ".join(f"{position.channel}: {position.seqno}" for position in positions)
    raise TargetError(
        f"the lanes ended before every channel was stopped (phase {state.phase}; committed by channel: {reached})",
        op="close",
        pipeline=config.pipeline,
        hint="See the lanes' logs; then clear open with everything downstream. Nothing is lost or applied twice.",
    )


def _is_early(seqno: int, target: Target, opened: OpenedRun) -> bool:
    """Whether a stop came before the run's bound."""
    until = target.freeze_run(opened.run_id, opened.until_lsn).until_seqno
    return until is None or seqno < until


def _stopped_at(positions: Sequence[Position]) -> int | None:
    """The seqno of a clean shutdown, where the channels stand at one."""
    return low_watermark(positions) if all_equal(positions) else None


def _settle(log: LogReader, target: Target, bounds: RunBounds) -> RunBounds:
    if bounds.until_seqno is not None:
        return bounds
    seqno = last_seqno_at(log, bounds.until_lsn)
    return bounds if seqno is None else target.settle_run(bounds.run_id, seqno)


def _until_lsn(until: str, current_lsn: int) -> int:
    """The bound to freeze. Errors: `ConfigurationError`, since a frozen bound stays that of its run."""
    if not until:
        return current_lsn
    asked = parse_lsn(until)
    if asked > current_lsn:
        raise ConfigurationError(
            f"parameter until: the source has not come to {until} yet",
            hint="Leave it empty for everything that is committed when the run first opens.",
        )
    return asked


def _is_owned(fence: FenceState | None) -> bool:
    return fence is not None and fence.lease_until is not None and fence.lease_until > _now()


def _tell_unless(cancelled: Callable[[], bool]) -> Callable[[BaseException], None]:
    def tell(error: BaseException) -> None:
        _logger.warning("capture: trying again: %s", error)
        if cancelled():
            raise error

    return tell


def _require_log(config: PipelineConfig, log_id: str) -> None:
    """A registered pipeline goes on with its own log. Errors: `ConfigurationError`, before a new slot keeps WAL."""
    found = open_reader(config.log_url).identity.log_id if log_exists(config.log_url) else None
    if found != log_id:
        raise ConfigurationError(
            f"the target has applied log {log_id} so far, "
            + (f"there is none at {config.log_url}" if found is None else f"{config.log_url} is log {found}"),
            op="prepare",
            pipeline=config.pipeline,
            hint="Use the pipeline's own log_url, or another pipeline name for another log.",
        )


def _shared_log(config: PipelineConfig, opened: OpenedRun) -> LogReader:
    hint = "log_url must be one directory that every worker sees, such as a network file system."
    if not log_exists(config.log_url):
        raise LogError(f"there is no log at {config.log_url} on this worker", op="apply", hint=hint)
    log = open_reader(config.log_url)
    if log.identity.log_id != opened.log_id:
        raise LogError(f"the log at {config.log_url} on this worker is another one", op="apply", hint=hint)
    return log


def _sweep(queue: Queue, pipeline: str, *, below: int) -> None:
    """Delete the tasks of generations below one: a task that stood still must not touch those of its successors. What
    a dead lane still holds goes with a later sweep.
    """
    for stats in queue.queue_stats(prefix=[f"{pipeline}/"]):
        generation = stats.queue.split("/")[1]
        if not generation.isdigit() or int(generation) >= below:
            continue
        for task in queue.tasks(stats.queue, omit_values=True):
            _delete(queue, task.ref)


def _delete(queue: Queue, ref: TaskRef) -> bool:
    try:
        queue.modify(claimant=_claimant("sweep"), delete=[ref])
    except DependencyError:
        return False
    return True


def _target(endpoint: Endpoint, config: PipelineConfig) -> Target:
    return open_target(endpoint, config.pipeline, log_url=config.log_url)


def _claimant(role: str) -> str:
    return f"{role} on {socket.gethostname()} pid {os.getpid()} {uuid4().hex[:8]}"


def _now() -> datetime:
    return pendulum.now("UTC")
