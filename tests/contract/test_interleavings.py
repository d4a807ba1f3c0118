"""Lanes, runs, stops, failures and takeovers in every order, over a ledger and a target in memory.

A lane stops before and behind each call that others could see the effect of, and goes on when it is told to: at each
such place it may die, or sleep past its lease while others go on. After each step laws 2, 3, 4 and 11 hold; once
nothing disturbs any more, runs bring the target to the history's end.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from airflow_parallel_apply.pipeline.config import Consistency
from airflow_parallel_apply.pipeline.coordinate.state import Phase
from airflow_parallel_apply.pipeline.errors import OwnershipLost, RetryableError
from tests.support.in_memory.history import KEYS, History, make_history
from tests.support.in_memory.pipeline import LEASE, MemoryPipeline, without_threads
from tests.support.in_memory.turns import Actor

_HISTORIES = 12
_MANY_RUNS = 4
_MANY_ROUNDS = 3_000

_directory = tempfile.TemporaryDirectory()
_counts = {"interleavings": 0, "turns": 0, "commits": 0, "of groups": 0, "merge points": 0}


@lru_cache
def history(seed: int) -> History:
    return make_history(Path(_directory.name), seed)


class Interleavings(RuleBasedStateMachine):
    """Every rule is something that happens to a pipeline. `teardown` lets it come to its end."""

    @initialize(
        seed=st.integers(0, _HISTORIES - 1),
        channels=st.sampled_from([3, 2, 1]),
        unit_bytes=st.sampled_from([1, 40, 10_000]),
        in_one_database=st.booleans(),
        refused=st.sets(st.integers(0, KEYS - 1), max_size=2),
        consistency=st.sampled_from(Consistency),
        rows_at_once=st.sampled_from([0, 3, 100]),
    )
    def begin(
        self,
        seed: int,
        channels: int,
        unit_bytes: int,
        in_one_database: bool,
        refused: set[int],
        consistency: Consistency,
        rows_at_once: int,
    ) -> None:
        self.pipeline = MemoryPipeline(
            history(seed),
            channels=channels,
            unit_bytes=unit_bytes,
            in_one_database=in_one_database,
            consistency=consistency,
            rows_at_once=rows_at_once,
        )
        self.pipeline.target.poison |= refused
        self.runs = 0
        self.finish(self.pipeline.open("run 0"))
        self.backup = self.pipeline.backup()
        self.lanes = [self.pipeline.lane(0), self.pipeline.lane(1)]

    @invariant()
    def laws(self) -> None:
        self.pipeline.check()

    # --- what happens ---

    @rule(order=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 15)), min_size=1, max_size=12))
    def go_on(self, order: list[tuple[int, int]]) -> None:
        for choice, turns in order:
            if actor := self.some(choice):
                for _ in range(turns):
                    self.turn(actor)

    @rule(choice=st.integers(0, 3))
    def kill(self, choice: int) -> None:
        if actor := self.some(choice):
            actor.kill()

    @rule(choice=st.integers(0, 3))
    def sleep_past_the_lease(self, choice: int) -> None:
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

    @rule(is_another=st.booleans(), consistency=st.sampled_from([None, None, *Consistency]))
    def open_again(self, is_another: bool, consistency: Consistency | None) -> None:
        """The task `open` is cleared, or another run begins, which may have to wait for the lease."""
        self.runs += is_another
        self.lanes.append(self.pipeline.open(f"run {self.runs}", consistency))

    @rule(key=st.integers(0, KEYS - 1))
    def refuse(self, key: int) -> None:
        self.pipeline.target.poison.add(key)

    @rule()
    def mend(self) -> None:
        self.pipeline.target.poison.clear()

    @rule()
    def back_up(self) -> None:
        self.backup = self.pipeline.backup()

    @rule()
    def restore_the_target(self) -> None:
        """And the ledger, where that is in its database."""
        self.pipeline.restore(self.backup)

    @precondition(lambda self: not self.pipeline.in_one_database)
    @rule()
    def restore_the_ledger(self) -> None:
        self.pipeline.restore_ledger(self.backup)

    # --- how it ends ---

    def teardown(self) -> None:
        if not hasattr(self, "pipeline"):
            return
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
        _counts["interleavings"] += 1
        _counts["commits"] += self.pipeline.commits
        _counts["of groups"] += self.pipeline.groups
        _counts["merge points"] += sum(found.count for found in self.pipeline.ledger.conflicts.values())

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
        _counts["turns"] += 1
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


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    without_threads(monkeypatch)


@pytest.fixture(autouse=True)
def report(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    _counts.update(dict.fromkeys(_counts, 0))
    yield
    with capsys.disabled():
        print("\n" + ", ".join(f"{count} {name}" for name, count in _counts.items()))


def run_machine(interleavings: int) -> None:
    chosen = settings(
        max_examples=interleavings,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(Interleavings, settings=chosen)  # type: ignore[no-untyped-call]


def test_no_interleaving_breaks_a_law() -> None:
    run_machine(200)


@pytest.mark.long
def test_none_of_thousands_of_interleavings_breaks_a_law() -> None:
    run_machine(5_000)
