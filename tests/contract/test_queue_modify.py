"""Modifies: all of it or none, and every reason named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from uuid import uuid4

import pendulum
import pytest

from airflow_parallel_apply.queue import (
    Change,
    DependencyError,
    FailureReason,
    Insert,
    Queue,
    Task,
    TaskId,
    TaskRef,
)
from tests.contract.queue_backends import Open
from tests.support.variants import gated

LEASE = timedelta(minutes=5)
NEVER = datetime(9000, 1, 1, tzinfo=UTC)


def put(queue: Queue, *inserts: Insert) -> tuple[Task, ...]:
    return queue.modify(claimant="maker", insert=inserts)


def new_id() -> TaskId:
    return TaskId(uuid4())


def test_a_modify_returns_inserted_then_changed_tasks_in_the_order_asked(queue: Queue) -> None:
    old = put(queue, *(Insert(queue="q", value=n) for n in range(3)))
    done = queue.modify(
        claimant="a",
        insert=[Insert(queue="z", value="z"), Insert(queue="b", value="b"), Insert(queue="m", value="m")],
        change=[Change(ref=task.ref, value=f"new {task.value}") for task in reversed(old)],
    )
    assert [task.value for task in done] == ["z", "b", "m", "new 2", "new 1", "new 0"]
    assert [task.version for task in done] == [0, 0, 0, 1, 1, 1]


def test_an_empty_modify_does_nothing(queue: Queue) -> None:
    assert queue.modify(claimant="a") == ()


@pytest.mark.parametrize("other", ["q", "other"])
def test_an_id_is_unique_over_all_queues(queue: Queue, other: str) -> None:
    (made,) = put(queue, Insert(queue="q"))
    with pytest.raises(DependencyError) as refused:
        put(queue, Insert(queue="new"), Insert(queue=other, task_id=made.task_id))
    assert [(failure.task_id, failure.reason) for failure in refused.value.inserts] == [
        (made.task_id, FailureReason.COLLIDING)
    ]
    assert queue.tasks("new") == ()


def test_skip_colliding_leaves_out_what_exists_and_inserts_the_rest(queue: Queue) -> None:
    (made,) = put(queue, Insert(queue="q", value="first"))
    done = put(
        queue,
        Insert(queue="q", value="second", task_id=made.task_id, skip_colliding=True),
        Insert(queue="q", value="other", skip_colliding=True),
    )
    assert [task.value for task in done] == ["other"]
    assert {task.value for task in queue.tasks("q")} == {"first", "other"}


def test_every_failing_entry_is_reported_and_nothing_is_done(queue: Queue) -> None:
    kept, stale, held, collided = put(queue, *(Insert(queue=name) for name in ("kept", "stale", "held", "collided")))
    (stale_now,) = queue.modify(claimant="x", change=[Change(ref=stale.ref, value=1)])
    claimed = queue.try_claim(["held"], claimant="other", lease=LEASE)
    assert claimed is not None
    missing = [TaskRef(task_id=new_id(), version=0) for _ in range(3)]
    with pytest.raises(DependencyError) as refused:
        queue.modify(
            claimant="a",
            insert=[Insert(queue="new"), Insert(queue="new", task_id=collided.task_id)],
            change=[Change(ref=ref, value=None) for ref in (kept.ref, missing[0], claimed.ref)],
            delete=[missing[1], stale.ref],
            depend=[missing[2]],
        )
    error = refused.value
    assert [(failure.task_id, failure.reason) for failure in error.inserts] == [
        (collided.task_id, FailureReason.COLLIDING)
    ]
    assert [(failure.task_id, failure.reason) for failure in error.changes] == [
        (missing[0].task_id, FailureReason.MISSING),
        (held.task_id, FailureReason.CLAIMED),
    ]
    assert (error.changes[1].claimant, error.changes[1].until) == ("other", claimed.at)
    assert [(failure.task_id, failure.reason, failure.version) for failure in error.deletes] == [
        (missing[1].task_id, FailureReason.MISSING, None),
        (stale.task_id, FailureReason.WRONG_VERSION, stale_now.version),
    ]
    assert [failure.task_id for failure in error.depends] == [missing[2].task_id]
    assert str(held.task_id) in str(error)
    assert "other until" in str(error)
    assert queue.tasks("new") == ()
    assert queue.tasks("kept") == (kept,)
    assert queue.tasks("stale") == (stale_now,)


def test_a_depend_checks_the_version_and_is_not_blocked_by_a_claim(queue: Queue) -> None:
    put(queue, Insert(queue="q"))
    claimed = queue.try_claim(["q"], claimant="other", lease=LEASE)
    assert claimed is not None
    queue.modify(claimant="a", depend=[claimed.ref], insert=[Insert(queue="new")])
    assert queue.tasks("q") == (claimed,)
    with pytest.raises(DependencyError) as refused:
        queue.modify(claimant="a", depend=[TaskRef(task_id=claimed.task_id, version=0)], insert=[Insert(queue="new")])
    assert [failure.reason for failure in refused.value.depends] == [FailureReason.WRONG_VERSION]
    assert len(queue.tasks("new")) == 1


def test_a_change_without_a_future_arrival_frees_the_task(queue: Queue) -> None:
    put(queue, Insert(queue="q", value=1, attempt=1))
    claimed = queue.try_claim(["q"], claimant="a", lease=LEASE)
    assert claimed is not None
    (freed,) = queue.modify(claimant="a", change=[Change(ref=claimed.ref, value=2, attempt=5, err="why")])
    assert (freed.claimant, freed.claims, freed.value, freed.attempt, freed.err) == (None, 1, 2, 5, "why")
    again = queue.try_claim(["q"], claimant="b", lease=LEASE)
    assert again is not None
    (kept,) = queue.modify(claimant="b", change=[Change(ref=again.ref, value=3, at=-LEASE)])
    assert (kept.claimant, kept.attempt, kept.err) == (None, 5, "why")


def test_a_change_with_a_future_arrival_keeps_the_claim(queue: Queue) -> None:
    (made,) = put(queue, Insert(queue="q"))
    (held,) = queue.modify(claimant="a", change=[Change(ref=made.ref, value=None, at=LEASE)])
    assert held.claimant == "a"
    assert queue.try_claim(["q"], claimant="b", lease=LEASE) is None
    with pytest.raises(DependencyError):
        queue.modify(claimant="b", delete=[held.ref])
    queue.modify(claimant="a", delete=[held.ref])


def test_times_and_durations_of_other_libraries_are_taken(queue: Queue) -> None:
    at, lease = pendulum.datetime(9000, 1, 1, tz="Europe/Berlin"), pendulum.duration(minutes=1)
    (made,) = put(queue, Insert(queue="q", at=at))
    assert made.at == at
    (freed,) = queue.modify(claimant="a", change=[Change(ref=made.ref, value=None, at=-lease)])
    held = queue.claim(["q"], claimant="a", lease=lease, timeout=pendulum.duration(seconds=5))
    assert held is not None
    assert queue.renew(held, claimant="a", lease=lease).at > freed.at


def test_a_delayed_change_holds_up_everybody_and_can_be_changed_by_anybody(queue: Queue) -> None:
    (made,) = put(queue, Insert(queue="q"))
    (delayed,) = queue.modify(claimant="a", change=[Change(ref=made.ref, value=None, at=NEVER, claimed=False)])
    assert (delayed.claimant, delayed.at) == (None, NEVER)
    assert queue.try_claim(["q"], claimant="a", lease=LEASE) is None
    (freed,) = queue.modify(claimant="b", change=[Change(ref=delayed.ref, value=None)])
    assert freed.version == 2


def test_a_task_moves_to_another_queue_with_its_id(queue: Queue) -> None:
    made = put(queue, Insert(queue="spread"), Insert(queue="strict", sequence=4))
    moved = queue.modify(
        claimant="a",
        change=[
            Change(ref=made[0].ref, value="to strict", queue="strict", sequence=9),
            Change(ref=made[1].ref, value="to err", queue="strict/err"),
        ],
    )
    assert [(task.task_id, task.queue, task.sequence) for task in moved] == [
        (made[0].task_id, "strict", 9),
        (made[1].task_id, "strict/err", None),
    ]
    assert [stats.queue for stats in queue.queue_stats()] == ["strict", "strict/err"]


def test_the_ids_of_a_modify_are_disjoint(queue: Queue) -> None:
    (made,) = put(queue, Insert(queue="q"))
    for lists in (
        {"delete": [made.ref], "depend": [made.ref]},
        {"delete": [made.ref, made.ref]},
        {"change": [Change(ref=made.ref, value=1)], "delete": [made.ref]},
        {"insert": [Insert(queue="q", task_id=made.task_id)], "delete": [made.ref]},
    ):
        with pytest.raises(ValueError, match="disjoint"):
            queue.modify(claimant="a", **lists)
    assert queue.tasks("q") == (made,)


@pytest.mark.parametrize("name", ["", "a\0b", "é" * 300])
def test_a_name_that_no_queue_can_have_is_refused(queue: Queue, name: str) -> None:
    with pytest.raises(ValueError, match="queue's name"):
        put(queue, Insert(queue=name))
    with pytest.raises(ValueError, match="queue's name"):
        queue.try_claim([name], claimant="a", lease=LEASE)


@gated
@pytest.mark.parametrize(
    "entry",
    [
        Insert(queue="q", value=float("nan")),
        Insert(queue="q", value={1, 2}),
        Insert(queue="q", value=b"bytes"),
        Insert(queue="q", sequence=2**63),
        Insert(queue="q", attempt=-1),
        Insert(queue="q", attempt=2**31),
        Insert(queue="q", err="a\0b"),
        Insert(queue="q", err="\ud800"),
        Insert(queue="\ud800"),
        Insert(queue="q", at=datetime(2020, 1, 1)),
        Insert(queue="q", at=timedelta.max),
        Insert(queue="q", at=datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))),
        Insert(queue="q", at=datetime.max.replace(tzinfo=timezone(timedelta(hours=-14)))),
    ],
    ids=repr,
)
def test_what_cannot_be_kept_is_refused_before_anything_is_done(queue: Queue, entry: Insert) -> None:
    with pytest.raises(ValueError, match=r"^an? "):
        put(queue, Insert(queue="fine"), entry)
    assert queue.queue_stats() == ()


@gated
@pytest.mark.parametrize("claimant", ["", "a\0b", "\ud800", "é" * 300])
def test_a_claimant_that_has_no_name_is_refused(queue: Queue, claimant: str) -> None:
    put(queue, Insert(queue="q"))
    with pytest.raises(ValueError, match="claimant"):
        queue.try_claim(["q"], claimant=claimant, lease=LEASE)
    with pytest.raises(ValueError, match="claimant"):
        queue.modify(claimant=claimant, insert=[Insert(queue="q")])


@gated
@pytest.mark.parametrize(
    "value",
    [None, True, 0, -1.5e300, 2**70, "", "é\u2028\x7f😀\n", [], {}, {"b": 1, "a": [None, {"": "x" * 100_000}]}],
    ids=lambda value: repr(value)[:20],
)
def test_a_value_comes_back_as_it_was_given(queue: Queue, value: object) -> None:
    put(queue, Insert(queue="q", value=value))
    (listed,) = queue.tasks("q")
    assert (listed.value, list(listed.value) if isinstance(value, dict) else 0) == (
        value,
        list(value) if isinstance(value, dict) else 0,
    )


@gated
def test_thousands_of_tasks_go_in_and_out_in_one_modify(queue: Queue) -> None:
    made = put(queue, *(Insert(queue=f"q{n % 4}", sequence=n, value={"n": n}) for n in range(4000)))
    assert [task.value["n"] for task in made] == list(range(4000))
    queue.modify(claimant="a", delete=[task.ref for task in made])
    assert queue.queue_stats() == ()


@gated
def test_modifies_of_the_same_tasks_at_once_neither_deadlock_nor_lose_one(open_client: Open) -> None:
    """Each moves a unit between two counters, in either direction and order: the sum stays."""
    queue = open_client()
    ids = [task.task_id for task in put(queue, *(Insert(queue="counter", value=100) for _ in range(3)))]

    def move(worker: int) -> int:
        moved = 0
        source, sink = ids[worker % 3], ids[(worker + 1) % 3]
        while moved < 10:
            now = {task.task_id: task for task in queue.tasks("counter")}
            try:
                queue.modify(
                    claimant=f"w{worker}",
                    change=[
                        Change(ref=now[sink].ref, value=now[sink].value + 1),
                        Change(ref=now[source].ref, value=now[source].value - 1),
                    ],
                    insert=[Insert(queue="moves")],
                )
            except DependencyError:
                continue
            moved += 1
        return moved

    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(move, range(3))) == 30
    assert sum(task.value for task in queue.tasks("counter")) == 300
    assert len(queue.tasks("moves")) == 30


def test_one_of_many_inserts_of_the_same_ids_wins_and_the_others_are_told(queue: Queue) -> None:
    ids = [new_id() for _ in range(20)]

    def insert(worker: int) -> list[FailureReason]:
        order = ids if worker % 2 else list(reversed(ids))
        try:
            put(queue, *(Insert(queue=f"w{worker}", task_id=task_id) for task_id in order))
        except DependencyError as error:
            return [failure.reason for failure in error.inserts]
        return []

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(insert, range(4))) == [[], *([[FailureReason.COLLIDING] * 20] * 3)]
    assert len(queue.queue_stats()) == 1
