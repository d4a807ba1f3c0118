"""Coordinator, lanes, queue and target together, on a log written by hand: barriers, stops, failures, recovery."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import psycopg
import pytest

from airflow_parallel_apply.pipeline.apply.barriers import Barriers
from airflow_parallel_apply.pipeline.apply.signals import Cancelled
from airflow_parallel_apply.pipeline.coordinate.feeding import FeedLimits
from airflow_parallel_apply.pipeline.coordinate.state import Phase
from airflow_parallel_apply.pipeline.coordinate.tasks import STOP_SEQUENCE
from airflow_parallel_apply.pipeline.errors import OwnershipLost
from airflow_parallel_apply.pipeline.model.epoch import StagedUnit, Unit
from airflow_parallel_apply.queue.model import Change as ChangeTask
from airflow_parallel_apply.queue.model import Task
from tests.support.generation import Generation
from tests.support.local_stage import LocalStage
from tests.support.variants import gated
from tests.support.written_log import Change, append


def history(count: int, seed: int, *, truncates: bool = True) -> tuple[list[list[Change]], dict[int, str | None]]:
    """Random transactions that a table could really see, and what it holds after them."""
    source = random.Random(seed)
    rows: dict[int, str | None] = {}
    transactions = []
    for number in range(count):
        changes: list[Change] = []
        if truncates and source.random() < 0.05:
            changes.append(Change("T"))
            rows.clear()
        for _ in range(source.randint(1, 6)):
            key = source.randint(1, 40)
            value = f"{number}.{source.random()}"
            if key not in rows:
                changes.append(Change("I", key, value))
                rows[key] = value
            elif source.random() < 0.6:
                changes.append(Change("U", key, value))
                rows[key] = value
            else:
                changes.append(Change("D", key))
                del rows[key]
        transactions.append(changes)
    return transactions, rows


def rows(dsn: str) -> dict[int, str | None]:
    with psycopg.connect(dsn) as connection:
        return dict(connection.execute("SELECT id, v FROM t").fetchall())


@pytest.mark.parametrize(
    ("channels", "lanes"),
    [(1, 1), (8, 3), pytest.param(8, 1, marks=pytest.mark.long), pytest.param(4, 4, marks=pytest.mark.long)],
)
def test_lanes_bring_every_channel_to_the_same_seqno(
    make: Callable[..., Generation], target_dsn: str, log_url: str, channels: int, lanes: int
) -> None:
    transactions, expected = history(120, seed=channels * 10 + lanes)
    last = append(log_url, 0, transactions)
    generation = make(channels)
    reports = generation.lanes(lanes)
    assert rows(target_dsn) == expected
    assert generation.seqnos() == [last] * channels
    assert {report.stop_seqno for report in reports} == {last}
    state = generation.coordinator.state()
    assert (state.phase, state.acknowledged) == (Phase.DRAINED, tuple(range(channels)))


def test_a_stop_marker_is_last_in_every_channel(make: Callable[..., Generation], log_url: str) -> None:
    append(log_url, 0, history(60, seed=1)[0])
    generation = make(4)
    for channel in range(4):
        waiting = generation.queue.tasks(generation.names.channel(channel))
        assert waiting[-1].sequence == STOP_SEQUENCE
        assert [task.value["kind"] for task in waiting].count("stop") == 1


@gated
def test_a_stop_in_the_middle_leaves_all_channels_at_one_seqno_and_the_next_run_goes_on(
    make: Callable[..., Generation], target_dsn: str, log_url: str
) -> None:
    transactions, expected = history(200, seed=3)
    last = append(log_url, 0, transactions)
    generation = make(4, FeedLimits(epochs=3))
    asked = generation.coordinator.request_stop()
    again = generation.coordinator.request_stop()
    assert asked == again
    generation.lanes(2)
    assert asked.stop_seqno is not None
    assert asked.stop_seqno < last
    assert generation.seqnos() == [asked.stop_seqno] * 4
    following = make(4)
    following.lanes(2)
    assert rows(target_dsn) == expected
    assert following.seqnos() == [last] * 4


def test_a_lane_of_an_older_generation_stops_without_changing_anything(
    make: Callable[..., Generation], target_dsn: str, log_url: str
) -> None:
    append(log_url, 0, history(30, seed=4)[0])
    older = make(2)
    make(2)
    with pytest.raises(OwnershipLost, match="Clear the task open"):
        older.lane()
    assert rows(target_dsn) == {}


def test_a_lane_that_slept_on_a_serial_unit_does_not_take_the_channels_from_the_next_holder(
    make: Callable[..., Generation], target_dsn: str, log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log_url, 0, [[Change("I", 1, "a")], [Change("T")]])
    generation = make(2)
    following = generation.open_session().target
    serve = Barriers.serve
    woken = threading.Event()

    def asleep(barriers: Barriers, task: Task) -> None:
        _hand_over(generation, "lane 0", "following")
        following.take(None, generation=generation.names.generation, token="following")
        woken.set()
        serve(barriers, task)

    monkeypatch.setattr(Barriers, "serve", asleep)
    with pytest.raises(Cancelled):
        generation.lane(0, cancelled=woken.is_set)
    assert [(position.seqno, position.claim) for position in following.positions()] == [(0, "following")] * 2
    assert rows(target_dsn) == {1: "a"}
    following.close()


def test_a_timeout_of_staging_itself_ends_the_lane_and_is_not_taken_for_staging_that_goes_on(
    make: Callable[..., Generation], log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log_url, 0, [[Change("I", 1, "a")]])
    generation = make(1)
    deadline = time.monotonic() + 120

    def timed_out(stage: LocalStage, unit: Unit) -> StagedUnit:
        raise TimeoutError("the disk does not answer")

    monkeypatch.setattr(LocalStage, "stage", timed_out)
    with pytest.raises(TimeoutError, match="the disk does not answer"):
        generation.lane(cancelled=lambda: time.monotonic() > deadline)


def _hand_over(generation: Generation, holder: str, following: str) -> None:
    """The serial task's lease is over, and somebody else claims it."""
    serial = generation.names.serial
    (held,) = generation.queue.tasks(serial)
    generation.queue.modify(claimant=holder, change=[ChangeTask(ref=held.ref, value=held.value)])
    claimed = generation.queue.try_claim([serial], claimant=following, lease=timedelta(seconds=60))
    assert claimed is not None


@gated
def test_after_a_failure_nothing_that_starts_above_it_is_applied_and_a_mended_target_goes_on(
    make: Callable[..., Generation], target_dsn: str, log_url: str
) -> None:
    """One channel of four cannot apply its second change; the others end where law 4 lets them."""
    first = [[Change("I", key, "a")] for key in range(1, 41)]
    transactions = first + [[Change("U", key, "b")] for key in range(1, 41)] * 3
    last = append(log_url, 0, transactions)
    generation = make(4, FeedLimits(epochs=1))
    generation.coordinator.request_stop()
    generation.lanes(2)
    with psycopg.connect(target_dsn) as connection:
        connection.execute("DELETE FROM t WHERE id = 17")
    failing = make(4)
    failing.lanes(3)
    state = failing.coordinator.state()
    assert state.phase is Phase.FAILED
    assert state.failure is not None
    assert "17" in state.failure.message
    with psycopg.connect(target_dsn) as connection:
        connection.execute("INSERT INTO t VALUES (17, 'a')")
    fixed = make(4)
    fixed.lanes(2)
    assert fixed.seqnos() == [last] * 4
    assert rows(target_dsn) == dict.fromkeys(range(1, 41), "b")


@gated
def test_lanes_that_are_cancelled_at_random_lose_and_repeat_nothing(
    make: Callable[..., Generation], target_dsn: str, log_url: str
) -> None:
    transactions, expected = history(300, seed=5)
    last = append(log_url, 0, transactions)
    for attempt in range(3):
        generation = make(4)
        _interrupted(generation, after_checks=4 + 9 * attempt)
    final = make(4)
    final.lanes(2)
    assert rows(target_dsn) == expected
    assert final.seqnos() == [last] * 4


def _interrupted(generation: Generation, *, after_checks: int) -> None:
    left = threading.Semaphore(after_checks)
    with pytest.raises(Exception, match="cancelled"):
        generation.lane(cancelled=lambda: not left.acquire(blocking=False))


def test_feeding_keeps_within_its_limits(make: Callable[..., Generation], log_url: str) -> None:
    append(log_url, 0, history(200, seed=6, truncates=False)[0])
    generation = make(2, FeedLimits(epochs=2))
    assert generation.coordinator.state().fed_epoch == 1
    assert len(_kinds(generation, 0)) == 2


def _kinds(generation: Generation, channel: int) -> Sequence[str]:
    return [task.value["kind"] for task in generation.queue.tasks(generation.names.channel(channel))]
