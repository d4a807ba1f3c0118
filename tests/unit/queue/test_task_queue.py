"""A task queue against the plain list of its tasks: order, statistics, pages, claims are what counting would find."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from airflow_parallel_apply.queue import QueueStats, Task
from airflow_parallel_apply.queue.memory.task_queue import OLDEST, TaskQueue, place_of
from airflow_parallel_apply.queue.model import TaskId

NOW = datetime(2026, 1, 1, tzinfo=UTC)
INT64 = st.integers(-(2**63), 2**63 - 1)
IDS = st.builds(lambda number: TaskId(UUID(int=number)), st.integers(0, 2**128 - 1))
TIMES = st.one_of(
    st.datetimes(timezones=st.just(UTC)),
    st.builds(lambda count: NOW + timedelta(microseconds=count), st.integers(-2, 2)),
)
HOLDERS = st.sampled_from([None, "a", "b"])


def task(task_id: TaskId, sequence: int | None, at: datetime, claimant: str | None, claims: int) -> Task:
    return Task(
        task_id=task_id,
        queue="q",
        version=0,
        sequence=sequence,
        at=at,
        claimant=claimant,
        claims=claims,
        attempt=0,
        err="",
        value="null",
        created=NOW,
        modified=NOW,
    )


SPREAD = st.lists(
    st.builds(task, IDS, st.none(), TIMES, HOLDERS, st.integers(0, 3)), max_size=80, unique_by=lambda one: one.task_id
)
STRICT = st.lists(
    st.builds(task, IDS, INT64, TIMES, HOLDERS, st.integers(0, 3)),
    max_size=20,
    unique_by=(lambda one: one.task_id, lambda one: one.sequence),
)


def in_order(tasks: list[Task]) -> list[Task]:
    return sorted(tasks, key=lambda one: (one.at if one.sequence is None else one.sequence, one.task_id))


def counted(tasks: list[Task]) -> QueueStats:
    claimed = sum(one.claimant is not None and one.at > NOW for one in tasks)
    available = sum(one.at <= NOW for one in tasks)
    return QueueStats(
        queue="q",
        size=len(tasks),
        claimed=claimed,
        available=available,
        future=len(tasks) - claimed - available,
        max_claims=max(one.claims for one in tasks),
    )


def task_queue_of(tasks: list[Task]) -> TaskQueue:
    task_queue = TaskQueue("q")
    half = len(tasks) // 2
    task_queue.put(tasks[:half])
    task_queue.put(tasks[half:])
    return task_queue


def check(task_queue: TaskQueue, tasks: list[Task]) -> None:
    assert task_queue.page(None, 1000) == in_order(tasks)
    assert len(task_queue) == len(tasks)
    assert all(task_queue.get(one.task_id.int) == one for one in tasks)
    if tasks:
        assert task_queue.stats(NOW) == counted(tasks)


@given(st.one_of(SPREAD, STRICT), st.data())
def test_what_is_put_and_removed_is_counted_as_it_stands(tasks: list[Task], data: st.DataObject) -> None:
    task_queue = task_queue_of(tasks)
    check(task_queue, tasks)
    gone = data.draw(st.lists(st.sampled_from(tasks), unique_by=lambda one: one.task_id) if tasks else st.just([]))
    task_queue.remove([one.task_id.int for one in gone])
    check(task_queue, [one for one in tasks if one not in gone])


@given(st.one_of(SPREAD, STRICT), st.integers(1, 100))
def test_a_claim_takes_the_head_or_neighbours_among_the_oldest_that_arrived(tasks: list[Task], limit: int) -> None:
    task_queue = task_queue_of(tasks)
    ordered = in_order(tasks)
    start, found = task_queue.claimable(NOW, limit)
    assert found == ordered[start : start + len(found)]
    assert all(one.at <= NOW for one in found)
    if task_queue.is_strict:
        assert found == ([ordered[0]] if ordered[0].at <= NOW else [])
    else:
        arrived = sum(one.at <= NOW for one in tasks)
        assert len(found) == min(limit, arrived)
        assert start + len(found) <= max(limit, OLDEST)
    claimed = [replace(one, at=NOW + timedelta(hours=1), claimant="me", claims=one.claims + 1) for one in found]
    task_queue.claim(start, found, claimed)
    check(task_queue, [*(one for one in tasks if one not in found), *claimed])


@given(st.one_of(SPREAD, STRICT), st.integers(1, 7))
def test_pages_follow_each_other_whatever_their_size(tasks: list[Task], size: int) -> None:
    task_queue = task_queue_of(tasks)
    listed: list[Task] = []
    while page := task_queue.page(listed[-1] if listed else None, size):
        listed += page
    assert listed == in_order(tasks)


@given(SPREAD, STRICT)
def test_everything_is_behind_a_task_of_the_other_kind(spread: list[Task], strict: list[Task]) -> None:
    for tasks, others in ((spread, strict), (strict, spread)):
        if tasks and others:
            assert task_queue_of(tasks).page(others[0], 1000) == in_order(tasks)


@given(st.one_of(SPREAD, STRICT))
def test_a_place_is_a_number_that_stands_in_the_queues_order(tasks: list[Task]) -> None:
    assert sorted(tasks, key=place_of) == in_order(tasks)


@given(STRICT, INT64, st.data())
def test_a_sequence_is_taken_by_a_task_that_stays(tasks: list[Task], sequence: int, data: st.DataObject) -> None:
    task_queue = task_queue_of(tasks)
    leaving = frozenset(data.draw(st.sets(st.sampled_from([one.task_id.int for one in tasks]))) if tasks else ())
    for asked in (sequence, *(one.sequence for one in tasks if one.sequence is not None)):
        stays = any(one.sequence == asked and one.task_id.int not in leaving for one in tasks)
        assert task_queue.has_place_taken(asked, leaving) == stays


def test_a_clock_that_was_set_back_makes_nobody_a_claimant() -> None:
    task_queue = task_queue_of([task(TaskId(UUID(int=number)), None, NOW, None, 0) for number in range(3)])
    found = task_queue.stats(NOW - timedelta(hours=1))
    assert (found.claimed, found.available, found.future) == (0, 0, 3)
