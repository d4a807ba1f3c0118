"""A ledger in memory: what `Ledger` promises, without a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from airflow_parallel_apply.pipeline.errors import ConfigurationError, LeaseBusy, OwnershipLost
from airflow_parallel_apply.pipeline.ledger.protocol import (
    LeaseRequest,
    PipelineState,
    RoutedPositions,
    RoutingChange,
    RunBounds,
)
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.model.epoch import Epoch, EpochKind, Unit
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.model.interval import Interval
from airflow_parallel_apply.pipeline.model.position import Position, low_watermark
from airflow_parallel_apply.pipeline.model.removal import Removal
from airflow_parallel_apply.pipeline.model.rework import Rework, ReworkCount, ReworkKind
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.protocol import Recopied

Clock = Callable[[], datetime]


@dataclass
class LedgerData:
    """The content of a ledger for one pipeline: the part that outlives its sessions."""

    state: PipelineState | None = None
    routing: Routing | None = None
    runs: dict[str, RunBounds] = field(default_factory=dict)
    plan: list[Epoch] = field(default_factory=list)
    rework: dict[Rework, ReworkCount] = field(default_factory=dict)

    def copy(self) -> LedgerData:
        return replace(self, runs=dict(self.runs), plan=list(self.plan), rework=dict(self.rework))


class MemoryLedger:
    """Implements `Ledger` over a `LedgerData`, which several of them may share in one thread. Tables are not recopied,
    and runs have no intervals.
    """

    def __init__(self, data: LedgerData, *, pipeline: str, clock: Clock) -> None:
        self._data = data
        self._pipeline = pipeline
        self._clock = clock

    def findings(self) -> tuple[Finding, ...]:
        return ()

    def is_installed(self) -> bool:
        return True

    def migrate(self) -> tuple[str, ...]:
        return ()

    def identity(self) -> str:
        return "memory"

    def drop(self, drop_target: Callable[[], Removal], *, force: bool) -> Removal:
        if self._is_owned() and not force:
            raise LeaseBusy("a run owns the pipeline")
        removal = drop_target()
        self._data.__init__()  # type: ignore[misc]
        return removal

    # --- owner ---

    def state(self) -> PipelineState | None:
        found = self._data.state
        if found is None or found.lease_until is None:
            return found
        lapsed_for = self._clock() - found.lease_until
        return replace(found, is_owned=self._is_owned(), lapsed_for=None if lapsed_for < timedelta(0) else lapsed_for)

    def acquire(self, request: LeaseRequest) -> PipelineState:
        found = self._registered(request.log_id, is_known=request.is_known)
        if self._is_owned() and found.owner != request.owner:
            raise LeaseBusy(f"run {found.owner} owns the pipeline", generation=found.generation)
        return self._write(
            owner=request.owner,
            lease_until=self._clock() + request.lease,
            queue=request.queue,
            generation=max(found.generation, request.above) + 1,
            clean_stop_seqno=None,
        )

    def renew_lease(self, generation: int, lease: timedelta) -> None:
        self._require(generation)
        self._write(lease_until=self._clock() + lease)

    def release(self, generation: int, *, clean_stop_seqno: int | None) -> None:
        self._require(generation)
        self._write(owner=None, lease_until=None, clean_stop_seqno=clean_stop_seqno)

    def keep_runs_out(self) -> None:
        raise NotImplementedError("nothing is recopied in memory")

    # --- routing ---

    def routing(self) -> Routing:
        if self._data.routing is None:
            raise ConfigurationError("the pipeline was never routed")
        return self._data.routing

    def route(self, change: RoutingChange, positions: RoutedPositions) -> None:
        routing, generation = change.routing, change.generation
        found = self._registered(change.log_id, is_known=change.is_known)
        if found.routing_digest == routing.digest and positions.routing_digest() == routing.digest:
            return
        if generation is None and found.owner is not None:
            raise LeaseBusy("a run owns the pipeline")
        if generation is not None:
            self._require(generation)
        raised = found.generation + (generation is None and bool(found.routing_digest))
        seqno = positions.lay_out(log_id=change.log_id, routing=routing, generation=raised)
        self._data.plan = [epoch for epoch in self._data.plan if epoch.last_seqno <= seqno]
        self._data.routing = routing
        self._write(routing_digest=routing.digest, channels=routing.channels, generation=raised)

    # --- run bounds ---

    def run_bounds(self, run_id: str) -> RunBounds | None:
        return self._data.runs.get(run_id)

    def freeze_run(self, run_id: str, until_offset: int, interval: Interval | None = None) -> RunBounds:
        assert interval is None
        if self._data.state is None:
            raise OwnershipLost("the pipeline was removed")
        return self._data.runs.setdefault(run_id, RunBounds(run_id=run_id, until_offset=until_offset, until_seqno=None))

    def settle_run(self, run_id: str, until_seqno: int) -> RunBounds:
        found = self._data.runs.get(run_id)
        if found is None:
            raise ConfigurationError(f"run {run_id} was never opened")
        if found.until_seqno is None:
            found = self._data.runs[run_id] = replace(found, until_seqno=until_seqno)
        return found

    def run_cuts(self, above_seqno: int) -> tuple[int, ...]:
        ends = (found.until_seqno for found in self._data.runs.values())
        return tuple(sorted({end for end in ends if end is not None and end > above_seqno}))

    def covered_time(self, seqno: int) -> datetime | None:
        return None

    # --- plan ---

    def planned_seqno(self) -> int:
        return self._data.plan[-1].last_seqno if self._data.plan else NO_SEQNO

    def next_epoch_number(self) -> int:
        return self._data.plan[-1].number + 1 if self._data.plan else 0

    def last_epoch_at(self, seqno: int) -> int:
        return max((epoch.number for epoch in self._data.plan if epoch.last_seqno <= seqno), default=-1)

    def add_epochs(
        self,
        epochs: Sequence[Epoch],
        *,
        routing_digest: str,
        after_seqno: int,
        low_seqno: int,
        generation: int | None,
        recopied: frozenset[str] = frozenset(),
    ) -> bool:
        found = self._data.state
        if found is None:
            return False
        if generation is None and found.owner is not None:
            raise LeaseBusy("a run owns the pipeline")
        if generation is not None:
            self._require(generation)
        if found.routing_digest != routing_digest or max(self.planned_seqno(), low_seqno) != after_seqno:
            return False
        self._data.plan += epochs
        return True

    def epochs(self, *, after_number: int = -1, above_seqno: int = -1, limit: int | None = None) -> tuple[Epoch, ...]:
        found = [epoch for epoch in self._data.plan if epoch.number > after_number and epoch.last_seqno > above_seqno]
        return tuple(found[:limit])

    def is_planned(self, unit: Unit) -> bool:
        return unit.epoch is None or any(
            epoch.number == unit.epoch
            and (
                epoch.last_seqno == unit.last_seqno
                or (epoch.kind is EpochKind.SERIAL and epoch.first_seqno <= unit.last_seqno <= epoch.last_seqno)
            )
            for epoch in self._data.plan
        )

    def cut_plan(self, seqno: int | None, positions: Sequence[Position], *, generation: int) -> None:
        self._require(generation)
        lowest, highest = low_watermark(positions), max(position.seqno for position in positions)
        for epoch in self._data.plan:
            inside = any(epoch.first_seqno <= at.seqno < epoch.last_seqno for at in positions)
            if inside and epoch.kind is EpochKind.PARALLEL:
                self._data.plan = [other for other in self._data.plan if other.last_seqno < epoch.first_seqno]
                break
        for epoch in self._data.plan if seqno is not None else ():
            if epoch.first_seqno <= seqno < epoch.last_seqno and (
                highest < epoch.first_seqno or (highest < epoch.last_seqno and lowest == highest)
            ):
                self._data.plan = [other for other in self._data.plan if other.last_seqno <= seqno]
                return

    def channel_rows(self, positions: Sequence[Position]) -> tuple[tuple[int, int], ...]:
        def rows(position: Position, *, committed: bool) -> int:
            return sum(
                epoch.rows[position.channel]
                for epoch in self._data.plan
                if (epoch.last_seqno <= position.seqno) is committed
            )

        return tuple((rows(at, committed=True), rows(at, committed=False)) for at in positions)

    def purge_plan(self, through_seqno: int) -> int:
        last = self.last_epoch_at(through_seqno)
        kept = [epoch for epoch in self._data.plan if epoch.number >= last]
        purged = len(self._data.plan) - len(kept)
        self._data.plan = kept
        return purged

    def note_recopied(self, tables: Sequence[Recopied], *, above_seqno: int) -> None:
        raise NotImplementedError("nothing is recopied in memory")

    # --- rework ---

    def count_rework(self, rework: Rework, *, seqno: int) -> None:
        before = self._data.rework.get(rework)
        if before is not None and rework.kind is ReworkKind.MERGE_POINT and before.last_seqno >= seqno:
            return
        self._data.rework[rework] = ReworkCount(
            kind=rework.kind,
            reason=rework.reason,
            table=rework.table,
            count=1 if before is None else before.count + 1,
            last_seqno=seqno,
            last_time=self._clock(),
        )

    def rework(self) -> tuple[ReworkCount, ...]:
        return tuple(self._data.rework.values())

    def close(self) -> None:
        """Holds nothing."""

    def _registered(self, log_id: str, *, is_known: bool) -> PipelineState:
        if self._data.state is None and is_known:
            raise OwnershipLost("the pipeline was removed")
        if self._data.state is None:
            self._data.state = PipelineState(
                pipeline=self._pipeline,
                log_id=log_id,
                routing_digest="",
                channels=0,
                generation=0,
                owner=None,
                lease_until=None,
                is_owned=False,
                clean_stop_seqno=None,
            )
        if self._data.state.log_id != log_id:
            raise ConfigurationError(f"the ledger is that of log {self._data.state.log_id}")
        return self._data.state

    def _is_owned(self) -> bool:
        found = self._data.state
        return found is not None and found.lease_until is not None and found.lease_until > self._clock()

    def _require(self, generation: int) -> None:
        if self._data.state is None or self._data.state.generation != generation:
            raise OwnershipLost(f"generation {generation} of the pipeline is over")

    def _write(self, **changes: object) -> PipelineState:
        assert self._data.state is not None
        self._data.state = replace(self._data.state, **changes)  # type: ignore[arg-type]
        found = self.state()
        assert found is not None
        return found
