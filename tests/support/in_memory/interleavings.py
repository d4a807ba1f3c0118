"""Lanes, runs, stops, failures and takeovers in every order, over a ledger and a target in memory.

A lane stops before and behind each call that others could see the effect of, and goes on when it is told to: at each
such place it may die, or sleep past its lease while others go on. After each step laws 2, 3, 4 and 11 hold; once
nothing disturbs any more, runs bring the target to the history's end.
"""

from __future__ import annotations

import random
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis import Phase as Of
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol
from airflow_parallel_apply.pipeline.coordinate.state import Phase
from airflow_parallel_apply.pipeline.errors import OwnershipLost, RetryableError
from airflow_parallel_apply.pipeline.model.rework import ReworkKind
from tests.support.in_memory.history import KEYS, History, make_history
from tests.support.in_memory.pipeline import LEASE, MemoryPipeline
from tests.support.in_memory.stepped import LostClaims
from tests.support.in_memory.turns import Actor

_HISTORIES: Final = 12
_MANY_RUNS: Final = 4
_MANY_ROUNDS: Final = 3_000
_MANY_TURNS: Final = 200
_PLACES: Final = (
    "behind claim",
    "behind modify",
    "modify",
    "tasks",
    "take",
    "stage",
    "behind stage",
    "series",
    "commit",
    "behind commit",
    "idle",
)
"""The places where an actor stops while others act upon what it has read, or has done and not yet told."""

counts = {"interleavings": 0, "turns": 0, "commits": 0, "of groups": 0, "merge points": 0}

_directory = tempfile.TemporaryDirectory()


@lru_cache
def history(seed: int) -> History:
    return make_history(Path(_directory.name), seed)


class Interleavings(RuleBasedStateMachine):
    """Every rule is something that happens to a pipeline. `teardown` lets it come to its end."""

    @initialize(
        seed=st.integers(0, _HISTORIES - 1),
        channels=st.sampled_from([3, 2, 1]),
        unit_bytes=st.sampled_from([1, 40, 10_000]),
        fed_epochs=st.sampled_from([3, 32]),
        in_one_database=st.booleans(),
        until_seqno=st.sampled_from([None, 3, 6, 9]),
        refused=st.sets(st.integers(0, KEYS - 1), max_size=2),
        consistency=st.sampled_from(Consistency),
        rows_at_once=st.sampled_from([0, 3, 100, None]),
        protocol=st.sampled_from(EpochProtocol),
    )
    def begin(
        self,
        seed: int,
        channels: int,
        unit_bytes: int,
        fed_epochs: int,
        in_one_database: bool,
        until_seqno: int | None,
        refused: set[int],
        consistency: Consistency = Consistency.CHANNEL,
        rows_at_once: int | None = 0,
        protocol: EpochProtocol = EpochProtocol.AUTO,
    ) -> None:
        self.pipeline = MemoryPipeline(
            history(seed),
            channels=channels,
            unit_bytes=unit_bytes,
            in_one_database=in_one_database,
            fed_epochs=fed_epochs,
            consistency=consistency,
            rows_at_once=rows_at_once,
            protocol=protocol,
        )
        self.pipeline.target.poison |= refused
        self.runs = 0
        self.lost_claims = LostClaims()
        self.lost_claims.attach()
        self.finish(self.pipeline.open("run 0", until_seqno=until_seqno))
        self.backup = self.pipeline.backup()
        self.lanes = [self.pipeline.lane(0), self.pipeline.lane(1)]

    @invariant()
    def laws(self) -> None:
        self.pipeline.check()
        assert not self.pipeline.is_calm or not self.lost_claims.count, "a claim was lost, and nobody disturbed it"

    # --- what happens ---

    @rule(order=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 15)), min_size=1, max_size=12))
    def go_on(self, order: list[tuple[int, int]]) -> None:
        for choice, turns in order:
            if actor := self.some(choice):
                for _ in range(turns):
                    self.turn(actor)

    @rule(choice=st.integers(0, 3), place=st.sampled_from(_PLACES), times=st.integers(1, 4))
    def go_to(self, choice: int, place: str, times: int) -> None:
        """Let one actor go to a place: whatever the others do next, they do while it is there."""
        if actor := self.some(choice):
            for _ in range(_MANY_TURNS):
                self.turn(actor)
                times -= actor.place == place
                if not times or not actor.is_running:
                    return

    @rule(choice=st.integers(0, 3), turns=st.sampled_from([20, 60, _MANY_TURNS]))
    def go_far(self, choice: int, turns: int) -> None:
        """One alone, while the others stand still."""
        if actor := self.some(choice):
            for _ in range(turns):
                self.turn(actor)

    @rule(choice=st.integers(0, 3), place=st.sampled_from(_PLACES), times=st.integers(1, 6), turns=st.integers(20, 90))
    def fail_beside(self, choice: int, place: str, times: int, turns: int) -> None:
        """The slowest channel's next change is refused, while another lane is at some place."""
        self.go_to(choice, place, times)
        seqnos = self.pipeline.seqnos
        self.refuse_next(seqnos.index(min(seqnos)), 0)
        self.go_far(choice + 1, turns)

    @rule(choice=st.integers(0, 3))
    def kill(self, choice: int) -> None:
        if actor := self.some(choice):
            actor.kill()

    @rule(choice=st.integers(0, 3))
    def sleep_past_the_lease(self, choice: int) -> None:
        self.pipeline.is_calm = False
        self.pipeline.move_time(1.1 * LEASE.total_seconds(), stalled=self.some(choice))

    @rule(seconds=st.sampled_from([1, 5, 40]))
    def time_goes_by(self, seconds: int) -> None:
        self.pipeline.move_time(seconds)

    @precondition(lambda self: sum(lane.is_running for lane in self.lanes) < 3)
    @rule()
    def another_lane(self) -> None:
        self.lanes.append(self.pipeline.lane(len(self.lanes)))

    @rule()
    def ask_to_stop(self) -> None:
        self.pipeline.is_stop_asked = True

    @rule()
    def stop_by_command(self) -> None:
        self.lanes.append(self.pipeline.ask_to_stop())

    @rule(
        is_another=st.booleans(),
        until_seqno=st.sampled_from([None, 5, 8, 11]),
        consistency=st.sampled_from([None, None, *Consistency]),
    )
    def open_again(self, is_another: bool, until_seqno: int | None, consistency: Consistency | None) -> None:
        """The task `open` is cleared, or another run begins, which may have to wait for the lease."""
        self.pipeline.is_calm = False
        self.runs += is_another
        self.lanes.append(self.pipeline.open(f"run {self.runs}", until_seqno=until_seqno, consistency=consistency))

    @rule(key=st.integers(0, KEYS - 1))
    def refuse(self, key: int) -> None:
        self.pipeline.target.poison.add(key)

    @rule(channel=st.integers(0, 2), ahead=st.integers(0, 2))
    def refuse_next(self, channel: int, ahead: int) -> None:
        """A key that the channel changes soon, or has at hand."""
        keys = self.pipeline.next_keys(channel)
        self.pipeline.target.poison |= set(keys[ahead : ahead + 1])

    @rule()
    def mend(self) -> None:
        self.pipeline.target.poison.clear()

    @rule()
    def back_up(self) -> None:
        self.backup = self.pipeline.backup()

    @rule()
    def restore_the_target(self) -> None:
        """And the ledger, where that is in its database."""
        self.pipeline.is_calm = False
        self.pipeline.restore(self.backup)

    @precondition(lambda self: self.pipeline.is_merging)
    @rule()
    def restore_while_merging(self) -> None:
        self.restore_the_target()

    @precondition(lambda self: not self.pipeline.in_one_database)
    @rule()
    def restore_the_ledger(self) -> None:
        self.pipeline.is_calm = False
        self.pipeline.restore_ledger(self.backup)

    @rule()
    def lose_the_queue(self) -> None:
        self.pipeline.is_calm = False
        self.pipeline.lose_the_queue()

    # --- how it ends ---

    def teardown(self) -> None:
        if not hasattr(self, "pipeline"):
            return
        try:
            self.come_to_the_end()
        finally:
            self.lost_claims.detach()

    def come_to_the_end(self) -> None:
        for lane in self.lanes:
            lane.kill()
        self.let_the_run_end()
        self.mend()
        last = self.pipeline.history.last_seqno
        for _ in range(_MANY_RUNS):
            if set(self.pipeline.seqnos) == {last}:
                break
            self.pipeline.move_time(2 * LEASE.total_seconds())
            self.runs += 1
            self.finish(self.pipeline.open(f"run {self.runs}"))
            self.let_the_run_end()
        assert set(self.pipeline.seqnos) == {last}, self.pipeline.state()
        assert self.pipeline.target.rows == self.pipeline.history.states[last]
        counts["interleavings"] += 1
        counts["commits"] += self.pipeline.commits
        counts["of groups"] += self.pipeline.groups
        counts["merge points"] += sum(
            found.count for found in self.pipeline.ledger.rework.values() if found.kind is ReworkKind.MERGE_POINT
        )

    def let_the_run_end(self) -> None:
        """New lanes, which nothing disturbs, end the last run by themselves, whatever the ones before left behind."""
        self.pipeline.move_time(2 * LEASE.total_seconds())
        before = self.pipeline.state()
        lanes = [self.pipeline.lane(0), self.pipeline.lane(1)]
        choose = random.Random(self.pipeline.commits)
        for _ in range(_MANY_ROUNDS):
            running = [lane for lane in lanes if lane.is_running]
            if not running:
                break
            lane = choose.choice(running)
            for _ in range(choose.randint(1, 15)):
                self.turn(lane)
            self.pipeline.move_time(0.1)
        state = self.pipeline.state()
        stuck = [lane.place for lane in lanes if lane.is_running]
        assert not stuck, f"stuck: {stuck}, {state}"
        if any(lane.error is None for lane in lanes):
            assert state is not None
            assert state.phase in (Phase.DRAINED, Phase.FAILED)
            # What was drained when a target went back is for `close` to compare with the positions.
            if state.phase is Phase.DRAINED and (before is None or before.phase is not Phase.DRAINED):
                assert set(self.pipeline.seqnos) == {state.stop_seqno}, "drained elsewhere than at the stop"

    # --- helpers ---

    def some(self, choice: int) -> Actor | None:
        running = [lane for lane in self.lanes if lane.is_running]
        return running[choice % len(running)] if running else None

    def turn(self, actor: Actor) -> None:
        actor.turn()
        counts["turns"] += 1
        if actor.error is not None:
            self.judge(actor.error)

    def finish(self, actor: Actor) -> None:
        while actor.is_running:
            self.turn(actor)
        assert actor.error is None, actor.error

    def judge(self, error: Exception) -> None:
        """An actor may end with what a person is told to clear; never with anything else."""
        if not isinstance(error, (RetryableError, OwnershipLost)):
            raise error


def run_machine(interleavings: int, *, is_shrunk: bool = True) -> None:
    """Errors: `AssertionError` with the law that one of so many breaks, shrunk or as it was met."""
    phases = (Of.generate, Of.shrink) if is_shrunk else (Of.generate,)
    chosen = settings(
        max_examples=interleavings,
        stateful_step_count=30,
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(Interleavings, settings=chosen)  # type: ignore[no-untyped-call]
