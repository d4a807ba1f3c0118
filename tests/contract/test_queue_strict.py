"""Strict queues: the head or nothing, whatever happens to it, whoever looks."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from airflow_parallel_apply.queue import Change, DependencyError, FailureReason, Insert, Queue, Task
from tests.contract.queue_backends import Open
from tests.support.variants import gated

LEASE = timedelta(minutes=5)
LONG = timedelta(seconds=30)
NEVER = datetime(9000, 1, 1, tzinfo=UTC)


def put(queue: Queue, *inserts: Insert) -> tuple[Task, ...]:
    return queue.modify(claimant="maker", insert=inserts)


def reasons(queue: Queue, *inserts: Insert) -> list[FailureReason]:
    with pytest.raises(DependencyError) as refused:
        put(queue, *inserts)
    return [failure.reason for failure in refused.value.inserts]


def test_tasks_are_handed_out_by_sequence_not_by_age_or_id(queue: Queue) -> None:
    put(queue, *(Insert(queue="q", sequence=n, value=n, at=-timedelta(seconds=n % 7)) for n in (5, -1, 2**62, 9)))
    order = []
    while (task := queue.try_claim(["q"], claimant="a", lease=LEASE)) is not None:
        order.append(task.value)
        queue.modify(claimant="a", delete=[task.ref])
    assert order == [-1, 5, 9, 2**62]


@gated
@pytest.mark.parametrize("how", ["claimed", "delayed", "failed", "inserted for later"])
def test_a_head_that_cannot_be_claimed_holds_up_what_is_behind_it(queue: Queue, how: str) -> None:
    late = NEVER if how == "inserted for later" else None
    head, _ = put(queue, Insert(queue="q", sequence=0, at=late), Insert(queue="q", sequence=1))
    match how:
        case "claimed":
            assert queue.try_claim(["q"], claimant="a", lease=LEASE) is not None
        case "delayed":
            queue.modify(claimant="a", change=[Change(ref=head.ref, value=None, at=LEASE, claimed=False)])
        case "failed":
            queue.modify(
                claimant="a",
                change=[Change(ref=head.ref, value=None, at=NEVER, claimed=False, attempt=1, err="bad unit")],
            )
    assert queue.try_claim(["q"], claimant="a", lease=LEASE) is None
    assert queue.claim(["q"], claimant="b", lease=LEASE, timeout=timedelta(milliseconds=50)) is None


def test_a_head_with_an_error_that_has_arrived_is_a_retry(queue: Queue) -> None:
    put(queue, Insert(queue="q", sequence=0), Insert(queue="q", sequence=1))
    head = queue.try_claim(["q"], claimant="a", lease=LEASE)
    assert head is not None
    queue.modify(claimant="a", change=[Change(ref=head.ref, value=None, attempt=1, err="timeout")])
    again = queue.try_claim(["q"], claimant="b", lease=LEASE)
    assert again is not None
    assert (again.sequence, again.attempt, again.err) == (0, 1, "timeout")


def test_a_lower_sequence_becomes_the_head(queue: Queue) -> None:
    put(queue, Insert(queue="q", sequence=5))
    put(queue, Insert(queue="q", sequence=4))
    task = queue.try_claim(["q"], claimant="a", lease=LEASE)
    assert task is not None
    assert task.sequence == 4


def test_a_taken_sequence_is_refused(queue: Queue) -> None:
    put(queue, Insert(queue="q", sequence=1))
    assert reasons(queue, Insert(queue="q", sequence=2), Insert(queue="q", sequence=1)) == [FailureReason.TAKEN]
    assert reasons(queue, Insert(queue="q", sequence=3), Insert(queue="q", sequence=3)) == [FailureReason.TAKEN]
    assert reasons(queue, Insert(queue="q", sequence=1, skip_colliding=True)) == [FailureReason.TAKEN]
    put(queue, Insert(queue="other", sequence=1))


def test_strict_and_spread_tasks_do_not_mix(queue: Queue) -> None:
    put(queue, Insert(queue="strict", sequence=1), Insert(queue="spread"))
    assert reasons(queue, Insert(queue="strict")) == [FailureReason.MIXED]
    assert reasons(queue, Insert(queue="spread", sequence=1)) == [FailureReason.MIXED]
    assert reasons(queue, Insert(queue="new"), Insert(queue="new", sequence=1)) == [FailureReason.MIXED]


def test_a_sequence_is_immutable_in_its_queue(queue: Queue) -> None:
    (made,) = put(queue, Insert(queue="q", sequence=1))
    with pytest.raises(ValueError, match="sequence"):
        queue.modify(claimant="a", change=[Change(ref=made.ref, value=None, sequence=2)])
    with pytest.raises(DependencyError) as refused:
        queue.modify(claimant="a", change=[Change(ref=made.ref, value=None, queue="q", sequence=2)])
    assert [failure.reason for failure in refused.value.changes] == [FailureReason.IMMUTABLE]
    (changed,) = queue.modify(claimant="a", change=[Change(ref=made.ref, value="new", queue="q")])
    assert (changed.sequence, changed.value) == (1, "new")


def test_a_move_into_a_taken_place_is_refused_and_into_one_left_by_the_same_modify_is_not(queue: Queue) -> None:
    one, two, three = put(
        queue, Insert(queue="x", sequence=1), Insert(queue="y", sequence=1), Insert(queue="x", sequence=3)
    )
    with pytest.raises(DependencyError) as refused:
        queue.modify(claimant="a", change=[Change(ref=one.ref, value=None, queue="y", sequence=1)])
    assert [failure.reason for failure in refused.value.changes] == [FailureReason.TAKEN]
    queue.modify(
        claimant="a",
        change=[
            Change(ref=one.ref, value=None, queue="y", sequence=1),
            Change(ref=two.ref, value=None, queue="x", sequence=1),
        ],
    )
    queue.modify(claimant="a", delete=[three.ref], insert=[Insert(queue="x", sequence=3, value="instead")])
    assert [task.task_id for task in queue.tasks("y")] == [one.task_id]
    assert [(task.sequence, task.value) for task in queue.tasks("x")] == [(1, None), (3, "instead")]


def test_finishing_a_head_and_holding_the_next_is_one_modify(queue: Queue) -> None:
    put(queue, *(Insert(queue="q", sequence=n) for n in range(3)))
    head = queue.try_claim(["q"], claimant="a", lease=LEASE)
    assert head is not None
    _, following, _ = queue.tasks("q")
    (held,) = queue.modify(
        claimant="a", delete=[head.ref], change=[Change(ref=following.ref, value=following.value, at=LEASE)]
    )
    assert held.claimant == "a"
    assert queue.try_claim(["q"], claimant="b", lease=LEASE) is None


@gated
def test_concurrent_workers_see_every_strict_queue_in_order_one_at_a_time(open_client: Open) -> None:
    """While others finish, put back, renew and lose heads, nobody ever holds two of one queue, or a later one."""
    channels, length = 3, 25
    queue = open_client()
    names = [f"channel/{channel}" for channel in range(channels)]
    put(queue, *(Insert(queue=name, sequence=n, value=n) for name in names for n in range(length)))
    order: dict[str, list[int]] = {name: [] for name in names}
    held: set[str] = set()
    guard = threading.Lock()
    torn: list[str] = []

    def work(worker: int) -> None:
        client = open_client()
        claimant, turn = f"w{worker}", 0
        while any(len(done) < length for done in order.values()):
            task = client.claim(names, claimant=claimant, lease=LEASE, timeout=timedelta(milliseconds=100))
            if task is None:
                continue
            turn += 1
            with guard:
                if task.queue in held or task.value != len(order[task.queue]):
                    torn.append(f"{task.queue} {task.value}")
                held.add(task.queue)
            if turn % 5 == 0:
                with guard:
                    held.discard(task.queue)
                client.modify(claimant=claimant, change=[Change(ref=task.ref, value=task.value)])
                continue
            if turn % 3 == 0:
                task = client.renew(task, claimant=claimant, lease=LEASE)
            with guard:
                order[task.queue].append(task.value)
                held.discard(task.queue)
            client.modify(claimant=claimant, delete=[task.ref])

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(work, worker) for worker in range(6)]:
            done.result(timeout=120)
    assert torn == []
    assert order == {name: list(range(length)) for name in names}


@gated
def test_a_head_that_is_replaced_all_the_time_never_lets_the_second_out(open_client: Open) -> None:
    """One thread swaps the parked head for another parked one of a lower sequence, the other claims as fast as it can:
    the task behind is never handed out.
    """
    queue = open_client()
    head, _ = put(queue, Insert(queue="q", sequence=0, at=NEVER), Insert(queue="q", sequence=1000, value="behind"))
    stop = threading.Event()
    claimed: list[Task] = []

    def claim() -> None:
        client = open_client()
        while not stop.is_set():
            task = client.try_claim(["q"], claimant="a", lease=LEASE)
            if task is not None:
                claimed.append(task)

    with ThreadPoolExecutor(2) as pool:
        claimers = [pool.submit(claim) for _ in range(2)]
        for turn in range(1, 150):
            (head,) = queue.modify(
                claimant="b", delete=[head.ref], insert=[Insert(queue="q", sequence=-turn, at=NEVER)]
            )
        stop.set()
        for done in claimers:
            done.result(timeout=180)
    assert claimed == []
