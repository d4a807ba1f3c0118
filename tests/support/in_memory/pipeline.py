"""A whole pipeline in memory: runs that open it and lanes that apply it, as actors whose turns a test gives.

The lanes, the coordinator, the planner and the queue's engine are the product's own. In memory are the ledger, the
target, and Spark's part; time is a number that a test moves on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from airflow_parallel_apply.pipeline.apply.lane import Lane
from airflow_parallel_apply.pipeline.apply.lane_context import LaneContext
from airflow_parallel_apply.pipeline.apply.report import LaneReport
from airflow_parallel_apply.pipeline.apply.signals import LaneSignals
from airflow_parallel_apply.pipeline.apply.target_watch import TargetWatch
from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol, PipelineConfig
from airflow_parallel_apply.pipeline.coordinate.coordinator import Coordinator
from airflow_parallel_apply.pipeline.coordinate.feeding import FeedLimits
from airflow_parallel_apply.pipeline.coordinate.grouping import GroupLimits
from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState
from airflow_parallel_apply.pipeline.coordinate.tasks import Names
from airflow_parallel_apply.pipeline.ledger.protocol import LeaseRequest, RoutingChange
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.model.change import BUCKET_COUNT
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.model.position import low_watermark
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.plan.extend import extend_plan
from airflow_parallel_apply.pipeline.run.pipeline_queue import PipelineQueue
from airflow_parallel_apply.pipeline.run.seeding import replanner, reviver, seeded_state
from airflow_parallel_apply.pipeline.run.values import OpenedRun
from airflow_parallel_apply.queue.memory.backend import MemoryQueue
from airflow_parallel_apply.queue.memory.engine import Engine
from airflow_parallel_apply.queue.model import Task
from tests.support.in_memory.checked import Checked, MemoryStage, TakenWhenProved
from tests.support.in_memory.history import History
from tests.support.in_memory.laws import Begun, Laws, failed_seqno
from tests.support.in_memory.ledger import LedgerData, MemoryLedger
from tests.support.in_memory.stepped import Claims, Queue, StillRenewer
from tests.support.in_memory.target import MemoryTarget
from tests.support.in_memory.target_data import TargetData
from tests.support.in_memory.turns import Actor, Stepped

LEASE: Final = timedelta(seconds=30)
_TARGET_CALLS: Final = ("positions", "own", "lay_out", "take", "take_part", "leave", "discard")
_LEDGER_CALLS: Final = ("state", "acquire", "route", "add_epochs", "epochs", "cut_plan", "count_rework")


class MemoryPipeline:
    """One pipeline over a finished history. `laws` are looked at by `check`, and behind each commit."""

    def __init__(
        self,
        history: History,
        *,
        channels: int,
        unit_bytes: int,
        in_one_database: bool,
        fed_epochs: int = 3,
        consistency: Consistency = Consistency.CHANNEL,
        rows_at_once: int | None = 0,
        protocol: EpochProtocol = EpochProtocol.AUTO,
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
            epoch_protocol=protocol,
        )
        self._groups = GroupLimits(bytes_=unit_bytes, rows_at_once=rows_at_once)
        self._configs: dict[int, PipelineConfig] = {}
        """By generation, whose number may come again after both databases went back."""
        self.in_one_database = in_one_database
        self._fed_epochs = fed_epochs
        self.generation = 0
        """The generation of the last run that opened."""
        self.actors: list[Actor] = []
        self.renewers: dict[Actor, StillRenewer] = {}
        self.is_stop_asked = False
        self.is_calm = True
        """True while nothing has happened that may cost a lane its claim."""
        self.commits = 0
        self.groups = 0
        self.bounds: dict[str, int] = {}
        """By run."""
        self._owners: dict[int, str] = {}
        self._begun: dict[int, CoordinatorState] = {}
        """By generation."""
        self.laws = Laws(history, self.target, self.ledger)

    # --- what a test does ---

    def open(self, owner: str, *, until_seqno: int | None = None, consistency: Consistency | None = None) -> Actor:
        """A run's task `open` begins. `until_seqno`: the run's bound, which is frozen; None: the history's end.
        `consistency`: from now on.
        """
        self.config = replace(self.config, consistency=consistency or self.config.consistency)
        config = self.config
        bound = self.history.last_seqno if until_seqno is None else until_seqno
        self.bounds.setdefault(owner, bound)
        return self._begin(f"open of {owner}", lambda: self._open(owner, config))

    def ask_to_stop(self) -> Actor:
        """A person stops the last generation by command."""
        generation = self.generation

        def stop() -> None:
            with closing(self._session()) as session:
                self._coordinator(session, Queue(self.engine), generation, "stop").request_stop()

        return self._begin("stop", stop)

    def lane(self, number: int) -> Actor:
        """A lane of the last run that opened begins."""
        generation = self.generation
        actor = self._begin(f"lane {number} of {generation}", lambda: self._lane(actor, number, generation))
        return actor

    def extend(self, history: History) -> None:
        """The log got more: a history that begins with the one so far."""
        self.history = history
        self.laws.extend(history)

    def move_time(self, seconds: float, *, stalled: Actor | None = None) -> None:
        """Time goes by; all but a stalled actor's leases are renewed meanwhile, every third of a lease. Nothing renews
        what an actor has claimed and does not know of yet.
        """
        running = [(actor, renewer) for actor, renewer in self.renewers.items() if actor.is_running]
        if any(
            actor is stalled or actor.place == "behind claim" or renewer.is_exchanging for actor, renewer in running
        ):
            self.is_calm = False
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
        self.laws.forget_positions()

    def restore_ledger(self, backup: tuple[TargetData, LedgerData]) -> None:
        """The ledger's database goes back to an earlier state of itself."""
        vars(self.ledger).update(vars(backup[1].copy()))

    def backup(self) -> tuple[TargetData, LedgerData]:
        return self.target.copy(), self.ledger.copy()

    def lose_the_queue(self) -> None:
        """As a queue does that is started anew without its files."""
        queue = MemoryQueue(self.engine)
        for found in queue.queue_stats():
            for task in queue.tasks(found.queue):
                queue.modify(claimant=task.claimant or "nobody", delete=[task.ref])
        self.laws.forget_states()

    def state(self) -> CoordinatorState | None:
        """The state of the last generation; None where its tasks are gone."""
        return self._state_of(self.generation)

    @property
    def seqnos(self) -> list[int]:
        return [at.seqno for at in self.target.positions]

    @property
    def serial_queue(self) -> str:
        """The serial queue of the last generation."""
        return self._names(self.generation).serial

    def next_keys(self, channel: int) -> list[int]:
        """Those that the log changes in a channel behind its position, in order."""
        positions = self.target.positions
        at = positions[channel % len(positions)]
        rows = (row for row in self.history.rows if row.seqno > at.seqno)
        return list(dict.fromkeys(row.id for row in rows if row.bucket * len(positions) // BUCKET_COUNT == at.channel))

    @property
    def is_merging(self) -> bool:
        state = self.state()
        return state is not None and state.merging is not None

    def check(self) -> None:
        """The laws of every moment."""
        self.laws.require(self.generation, self.state(), bound=max(self.bounds.values(), default=-1))

    def check_commit(self, unit: Unit, begun: Begun) -> None:
        """The laws of a commit, and of the moment behind it."""
        self.commits += 1
        in_groups = self._configs[unit.generation].consistency is Consistency.EPOCH and self.config.channels > 1
        self.groups += in_groups
        self.check()
        self.laws.require_of_commit(
            unit, begun, self._state_of(unit.generation), self._heads(unit.generation), in_groups=in_groups
        )

    def begun(self, generation: int) -> Begun:
        """As it is in this moment."""
        failed = failed_seqno(self._heads(generation), self.seqnos)
        return Begun(state=self._state_of(generation), failed_seqno=failed)

    # --- what actors run ---

    def _begin(self, name: str, call: Callable[[], object]) -> Actor:
        actor = Actor(name, call)
        self.actors.append(actor)
        return actor

    def _heads(self, generation: int) -> list[Task]:
        queue, names = MemoryQueue(self.engine), self._names(generation)
        return [head for number in range(self.config.channels) for head in queue.tasks(names.channel(number), limit=1)]

    def _state_of(self, generation: int) -> CoordinatorState | None:
        names = self._names(generation)
        found = MemoryQueue(self.engine).tasks(names.coordinator, ids=[names.coordinator_id])
        return CoordinatorState.from_json(found[0].value) if found else None

    def _session(self, claims: Claims | None = None) -> PipelineSession:
        ledger = MemoryLedger(self.ledger, pipeline="p", clock=lambda: self.now)
        planned = ledger.is_planned if self.in_one_database else (lambda unit: True)
        target = Stepped(
            Checked(MemoryTarget(self.target, require_planned=planned), self.check_commit, claims),
            before=(*_TARGET_CALLS, "commit"),
            behind=("own", "lay_out", "take", "take_part", "commit"),
        )
        return PipelineSession(
            ledger=Stepped(ledger, before=_LEDGER_CALLS, behind=("acquire", "route", "add_epochs")),
            target=TakenWhenProved(target, claims),
            is_one_database=self.in_one_database,
        )

    def _names(self, generation: int) -> Names:
        return Names(pipeline="p", generation=generation)

    def _open(self, owner: str, config: PipelineConfig) -> None:
        log, last = self.history.log, self.bounds[owner]
        with closing(self._session()) as session:
            tasks = PipelineQueue(Queue(self.engine), pipeline="p")
            taken = session.acquire(
                LeaseRequest(log_id=log.identity.log_id, owner=owner, lease=LEASE, above=tasks.highest_generation())
            )
            self.laws.forget_states(taken.generation)
            session.route(
                RoutingChange(
                    generation=taken.generation,
                    log_id=log.identity.log_id,
                    routing=Routing(channels=self.config.channels),
                )
            )
            session.ledger.freeze_run(owner, until_offset=_offset(last))
            session.ledger.settle_run(owner, last)
            session.ledger.cut_plan(last, session.target.positions(), generation=taken.generation)
            extend_plan(log, session, config, generation=taken.generation)
            state = seeded_state(session, config, last)
            self._owners[taken.generation], self._configs[taken.generation] = owner, config
            self._begun[taken.generation] = state
            if low_watermark(session.target.positions()) < last:
                coordinator = self._coordinator(session, tasks.queue, taken.generation, owner)
                tasks.sweep(below=taken.generation)
                coordinator.seed(state, capture=False)
                coordinator.feed()
            self.generation, self.is_stop_asked = taken.generation, False

    def _coordinator(self, session: PipelineSession, queue: Any, generation: int, claimant: str) -> Coordinator:
        owner = self._owners[generation]
        opened = OpenedRun(
            pipeline="p", run_id=owner, generation=generation, log_id=self.history.log.identity.log_id,
            until_offset=str(_offset(self.bounds[owner])),
            until_seqno=self.bounds[owner], nothing_to_do=False, lanes=2,
            coordinator_state=self._begun[generation].to_json(),
        )  # fmt: skip

        def replan(until_seqno: int | None) -> None:
            if session.ledger.run_bounds(owner) is None:
                session.ledger.freeze_run(owner, until_offset=_offset(self.bounds[owner]))
            replanner(opened, session, self.config, self.history.log)(until_seqno)

        return Coordinator(
            queue,
            session,
            self._names(generation),
            claimant=claimant,
            limits=FeedLimits(epochs=self._fed_epochs, groups=self._groups),
            revive=reviver(opened, session, self._configs[generation], PipelineQueue(queue, pipeline="p"), replan),
            replan=replan,
        )

    def _lane(self, actor: Actor, number: int, generation: int) -> LaneReport:
        claimant = f"{actor.name} {id(actor)}"
        claims = Claims(begun=lambda: self.begun(generation), clock=lambda: self.now)
        queue = Queue(self.engine, claims)
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
        with closing(self._session(claims)) as session:
            context = LaneContext(
                config=self.config,
                routing=session.ledger.routing(),
                claimant=claimant,
                coordinator=self._coordinator(session, queue, generation, claimant),
                session=session,
                require_pipeline=session.ledger.state,
                log=self.history.log,
                stage=MemoryStage(session.target, self.history),
                renewer=renewer,
                watch=TargetWatch(session.target, session.target, cancelled=lambda: False),
                signals=LaneSignals(
                    stop_requested=lambda: self.is_stop_asked, cancelled=lambda: False, report=lambda report: None
                ),
                show_offset=str,
                report=report,
            )
            Lane(context, lane=number, capture=lambda: None, background_failure=lambda: None).run()
        return report


def _offset(seqno: int) -> int:
    return seqno * 10 + 9
