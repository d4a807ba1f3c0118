"""A whole pipeline in memory: runs that open it and lanes that apply it, as actors whose turns a test gives.

The lanes, the coordinator, the planner and the queue's engine are the product's own. In memory are the ledger, the
target, and Spark's part; time is a number that a test moves on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import pytest
import tenacity

from airflow_parallel_apply.pipeline.apply import channel_apply as branches_module
from airflow_parallel_apply.pipeline.apply import retry as retry_module
from airflow_parallel_apply.pipeline.apply.lane import Lane
from airflow_parallel_apply.pipeline.apply.lane_context import LaneContext
from airflow_parallel_apply.pipeline.apply.lease_renewer import LeaseRenewer
from airflow_parallel_apply.pipeline.apply.report import LaneReport
from airflow_parallel_apply.pipeline.apply.signals import LaneSignals
from airflow_parallel_apply.pipeline.config import Consistency, PipelineConfig
from airflow_parallel_apply.pipeline.coordinate.coordinator import Coordinator
from airflow_parallel_apply.pipeline.coordinate.feeding import FeedLimits
from airflow_parallel_apply.pipeline.coordinate.grouping import GroupLimits
from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState
from airflow_parallel_apply.pipeline.coordinate.tasks import Names
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.model.epoch import EpochKind, StagedUnit, Unit
from airflow_parallel_apply.pipeline.model.position import low_watermark
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.plan.extend import extend_plan
from airflow_parallel_apply.pipeline.run.pipeline_queue import PipelineQueue
from airflow_parallel_apply.pipeline.run.seeding import seeded_state
from airflow_parallel_apply.pipeline.target.steps import Step
from airflow_parallel_apply.queue.memory.backend import MemoryQueue
from airflow_parallel_apply.queue.memory.engine import Engine
from airflow_parallel_apply.queue.model import Change, QueueError, Task
from tests.support.in_memory.history import History
from tests.support.in_memory.ledger import LedgerData, MemoryLedger
from tests.support.in_memory.target import MemoryTarget, TargetData
from tests.support.in_memory.turns import Actor, Stepped, pause

LEASE: Final = timedelta(seconds=30)
_RUN: Final = "run"
_TARGET_CALLS: Final = ("positions", "own", "lay_out", "take", "take_part", "leave", "discard")
_LEDGER_CALLS: Final = ("state", "acquire", "route", "add_epochs", "epochs", "cut_plan", "count_conflict")


class Queue(MemoryQueue):
    """The product's queue; whoever would wait lets others have their turns instead. `on_hold` is called in the moment
    in which a task is claimed, or held after another one.
    """

    def __init__(self, engine: Engine, on_hold: Callable[[], None] = lambda: None) -> None:
        super().__init__(engine)
        self._on_hold = on_hold

    def claim_many(self, queues: Sequence[str], *, timeout: timedelta = timedelta(0), **options: Any) -> Any:
        pause("claim")
        found = super().claim_many(queues, timeout=timedelta(0), **options)
        if found:
            self._on_hold()
        pause("behind claim" if found or not timeout else "idle")
        return found

    def modify(self, *, change: Sequence[Change] = (), **options: Any) -> tuple[Task, ...]:
        pause("modify")
        done = super().modify(change=change, **options)
        if any(isinstance(entry.at, timedelta) for entry in change):
            self._on_hold()
        pause("behind modify")
        return done

    def renew(self, task: Task, **options: Any) -> Task:
        pause("renew")
        return super().renew(task, **options)

    def tasks(self, queue: str, **options: Any) -> tuple[Task, ...]:
        pause("tasks")
        return super().tasks(queue, **options)


class StillRenewer(LeaseRenewer):
    """Renews when it is told to. A renewal waits while the lane is inside an exchange, as that of a thread does."""

    is_exchanging = False

    def exchange(self, role: str, step: Callable[[Task], Task | None]) -> Task | None:
        self.is_exchanging = True
        try:
            return super().exchange(role, step)
        finally:
            self.is_exchanging = False

    def renew(self) -> None:
        if not self.is_exchanging:
            super().renew()


class AtOnce:
    """An executor whose calls are done when they are submitted."""

    def __init__(self, **options: object) -> None:
        """As `ThreadPoolExecutor`."""

    def submit(self, call: Callable[..., Any], *arguments: object) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(call(*arguments))
        except (ParallelApplyError, QueueError) as error:
            done.set_exception(error)
        return done

    def shutdown(self, **options: object) -> None:
        """Nothing is under way."""


class MemoryPipeline:
    """One pipeline over a finished history. `laws` are looked at by `check`, at any moment."""

    def __init__(
        self,
        history: History,
        *,
        channels: int,
        unit_bytes: int,
        in_one_database: bool,
        consistency: Consistency = Consistency.CHANNEL,
        rows_at_once: int = 0,
    ) -> None:
        self.history = history
        self.ledger = LedgerData()
        self.target = TargetData(unique=history.is_unique)
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.engine = Engine(clock=lambda: self.now)
        self.config = PipelineConfig(
            pipeline="p",
            log_url="memory",
            channels=channels,
            epoch_max_changes=4,
            unit_max_bytes=unit_bytes,
            lease=LEASE,
            consistency=consistency,
        )
        self._groups = GroupLimits(bytes_=unit_bytes, rows_at_once=rows_at_once)
        self._in_groups: dict[int, bool] = {}
        """By generation, whose number may come again after both databases went back."""
        self.in_one_database = in_one_database
        self.generation = 0
        """Of the last run that opened."""
        self.actors: list[Actor] = []
        self.renewers: dict[Actor, StillRenewer] = {}
        self.is_stop_asked = False
        self.commits = 0
        self.groups = 0
        self._reached: dict[int, int] = {}

    # --- what a test does ---

    def open(self, owner: str, consistency: Consistency | None = None) -> Actor:
        """A run's task `open` begins. `consistency`: from now on."""
        self.config = replace(self.config, consistency=consistency or self.config.consistency)
        return self._begin(f"open of {owner}", lambda: self._open(owner))

    def lane(self, number: int) -> Actor:
        """A lane of the last run that opened begins."""
        generation = self.generation
        actor = self._begin(f"lane {number} of {generation}", lambda: self._lane(actor, number, generation))
        return actor

    def move_time(self, seconds: float, *, stalled: Actor | None = None) -> None:
        """Time goes by; all but a stalled actor's leases are renewed meanwhile, every third of a lease."""
        third = LEASE.total_seconds() / 3
        while seconds > 0:
            self.now += timedelta(seconds=min(seconds, third))
            seconds -= third
            for actor, renewer in list(self.renewers.items()):
                if actor.is_running and actor is not stalled:
                    renewer.renew()

    def restore(self, backup: tuple[TargetData, LedgerData]) -> None:
        """The target's database goes back to an earlier state of itself; with the ledger, where that is in it."""
        self.target.restore(backup[0])
        if self.in_one_database:
            self.restore_ledger(backup)
        self._reached.clear()

    def restore_ledger(self, backup: tuple[TargetData, LedgerData]) -> None:
        """The ledger's database goes back to an earlier state of itself."""
        vars(self.ledger).update(vars(backup[1].copy()))

    def backup(self) -> tuple[TargetData, LedgerData]:
        return self.target.copy(), self.ledger.copy()

    def state(self) -> CoordinatorState | None:
        """Of the last generation; None where its tasks are gone."""
        return self._state_of(self.generation)

    @property
    def seqnos(self) -> list[int]:
        return [at.seqno for at in self.target.positions]

    # --- the laws ---

    def check(self) -> None:
        """What is true at every moment."""
        assert self.target.rows == self.history.rows_at(self.seqnos), "rows are not those of the positions (law 3)"
        for at in self.target.positions:
            assert at.seqno >= self._reached.get(at.channel, at.seqno), "a position went back (law 3)"
            self._reached[at.channel] = at.seqno
        low, high = min(self.seqnos, default=-1), max(self.seqnos, default=-1)
        for epoch in self.ledger.plan:
            if epoch.kind is EpochKind.SERIAL:
                is_passed_by_all = low >= epoch.first_seqno or high < epoch.first_seqno
                assert is_passed_by_all, f"a channel is past the serial epoch {epoch.number}, another before (law 2)"
        assert high <= self.history.last_seqno, "a channel is beyond the run's bound (law 11)"

    def check_commit(self, unit: Unit, began: CoordinatorState | None) -> None:
        """What is true of each commit. `began`: the state when its first task was claimed."""
        self.commits += 1
        failure = None if began is None else began.failure
        assert failure is None or unit.after_seqno < failure.seqno, (
            f"seqno {unit.after_seqno + 1} was begun behind a failure at {failure and failure.seqno} (law 4)"
        )
        if self._in_groups[unit.generation]:
            assert len(set(self.seqnos)) == 1, "a transaction of the source is visible in part (law 4, epoch)"
            self.groups += 1
        self.check()

    # --- what actors run ---

    def _begin(self, name: str, call: Callable[[], object]) -> Actor:
        actor = Actor(name, call)
        self.actors.append(actor)
        return actor

    def _state_of(self, generation: int) -> CoordinatorState | None:
        names = self._names(generation)
        found = MemoryQueue(self.engine).tasks(names.coordinator, ids=[names.coordinator_id])
        return CoordinatorState.from_json(found[0].value) if found else None

    def _session(self, began: Callable[[], CoordinatorState | None] = lambda: None) -> PipelineSession:
        ledger = MemoryLedger(self.ledger, pipeline="p", clock=lambda: self.now)
        planned = ledger.is_planned if self.in_one_database else (lambda unit: True)
        target = _Checked(MemoryTarget(self.target, require_planned=planned), self, began)
        return PipelineSession(
            ledger=Stepped(ledger, before=_LEDGER_CALLS, behind=("acquire", "route", "add_epochs")),
            target=Stepped(
                target, before=(*_TARGET_CALLS, "commit"), behind=("own", "lay_out", "take", "take_part", "commit")
            ),
            is_one_database=self.in_one_database,
        )

    def _names(self, generation: int) -> Names:
        return Names(pipeline="p", generation=generation)

    def _open(self, owner: str) -> None:
        log, last = self.history.log, self.history.last_seqno
        with closing(self._session()) as session:
            tasks = PipelineQueue(Queue(self.engine), pipeline="p")
            taken = session.acquire(log_id="log", owner=owner, lease=LEASE, above=tasks.highest_generation())
            session.route(taken.generation, log_id="log", routing=Routing(channels=self.config.channels))
            session.ledger.freeze_run(_RUN, until_offset=last * 10 + 9)
            session.ledger.settle_run(_RUN, last)
            session.ledger.cut_plan(last, session.target.positions(), generation=taken.generation)
            extend_plan(log, session, self.config, generation=taken.generation)
            state = seeded_state(session, self.config, last)
            self._in_groups[taken.generation] = state.in_groups
            if low_watermark(session.target.positions()) < last:
                coordinator = self._coordinator(session, tasks.queue, taken.generation, owner)
                tasks.sweep(below=taken.generation)
                coordinator.seed(state, capture=False)
                coordinator.feed()
            self.generation, self.is_stop_asked = taken.generation, False

    def _coordinator(self, session: PipelineSession, queue: Any, generation: int, claimant: str) -> Coordinator:
        def replan(until_seqno: int | None) -> None:
            if session.ledger.run_bounds(_RUN) is None:
                session.ledger.freeze_run(_RUN, until_offset=self.history.last_seqno * 10 + 9)
            session.ledger.settle_run(_RUN, self.history.last_seqno)
            extend_plan(self.history.log, session, self.config, generation=generation)

        return Coordinator(
            queue,
            session,
            self._names(generation),
            claimant=claimant,
            limits=FeedLimits(epochs=3, groups=self._groups),
            replan=replan,
        )

    def _lane(self, actor: Actor, number: int, generation: int) -> LaneReport:
        claimant = f"{actor.name} {id(actor)}"
        began: dict[str, CoordinatorState | None] = {}
        queue = Queue(self.engine, lambda: began.update(claim=self._state_of(generation)))
        report = LaneReport(lane=number, generation=generation)
        lost: list[str] = []
        renewing = MemoryLedger(self.ledger, pipeline="p", clock=lambda: self.now)
        renewer = StillRenewer(
            MemoryQueue(self.engine),
            claimant=claimant,
            lease=LEASE,
            renew_lease=lambda: renewing.renew_lease(generation, LEASE),
            on_lost=lost.append,
        )
        self.renewers[actor] = renewer
        with closing(self._session(lambda: began.get("claim"))) as session:
            context = LaneContext(
                config=self.config,
                routing=session.ledger.routing(),
                claimant=claimant,
                coordinator=self._coordinator(session, queue, generation, claimant),
                session=session,
                log=self.history.log,
                stage=_Stage(session.target, self),
                renewer=renewer,
                signals=LaneSignals(
                    stop_requested=lambda: self.is_stop_asked, cancelled=lambda: False, report=lambda report: None
                ),
                show_offset=str,
                report=report,
            )
            Lane(context, lane=number, background_failure=lambda: None).run()
        return report


class _Checked:
    """A target after each of whose commits the laws are looked at."""

    def __init__(
        self, inner: MemoryTarget, pipeline: MemoryPipeline, began: Callable[[], CoordinatorState | None]
    ) -> None:
        self._inner = inner
        self._pipeline = pipeline
        self._began = began

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, unit: Unit, steps: Sequence[Step]) -> None:
        self._inner.commit(unit, steps)
        self._pipeline.check_commit(unit, self._began())


class _Stage:
    """Staging by the target itself."""

    def __init__(self, target: Any, pipeline: MemoryPipeline) -> None:
        self._target = target
        self._pipeline = pipeline

    def stage(self, unit: Unit) -> StagedUnit:
        pause("stage")
        staged: StagedUnit = self._target.stage(unit, self._pipeline.history.rows)
        return staged

    def cancel(self) -> None:
        """Stages run in one piece."""

    def close(self) -> None:
        """Holds nothing."""


def without_threads(patch: pytest.MonkeyPatch) -> None:
    """Lanes of this process stage at once, and where they would sleep others have their turns."""
    patch.setattr(branches_module, "ThreadPoolExecutor", AtOnce)
    patch.setattr(retry_module, "Retrying", partial(tenacity.Retrying, sleep=lambda seconds: pause("retry")))
