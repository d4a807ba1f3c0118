"""Claims: what is handed out, when, to whom, and for how long."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from airflow_parallel_apply.queue import Change, DependencyError, FailureReason, Insert, Queue, QueueError, Task
from tests.contract.queue_backends import Open
from tests.support.variants import gated

LEASE = timedelta(minutes=5)
SOON = timedelta(milliseconds=300)
LONG = timedelta(seconds=120)
NOW = timedelta(0)
NEVER = datetime(9000, 1, 1, tzinfo=UTC)


def put(queue: Queue, *inserts: Insert) -> tuple[Task, ...]:
    return queue.modify(claimant="maker", insert=inserts)


def test_an_empty_queue_gives_nothing(queue: Queue) -> None:
    assert queue.try_claim(["q"], claimant="a", lease=LEASE) is None
    assert queue.try_claim([], claimant="a", lease=LEASE) is None
    assert queue.claim(["q"], claimant="a", lease=LEASE, timeout=NOW) is None
    assert queue.claim(["q"], claimant="a", lease=LEASE, timeout=timedelta(milliseconds=20)) is None


def test_a_claim_raises_version_and_claims_and_names_the_claimant(queue: Queue) -> None:
    (made,) = put(queue, Insert(queue="q", value={"n": [1, 2.5, None, "é"]}, attempt=2, err="once"))
    claimed = queue.try_claim(["q"], claimant="a", lease=LEASE)
    assert claimed is not None
    assert (claimed.task_id, claimed.version, claimed.claims) == (made.task_id, made.version + 1, 1)
    assert (claimed.claimant, claimed.attempt, claimed.err) == ("a", 2, "once")
    assert claimed.value == {"n": [1, 2.5, None, "é"]}
    assert claimed.created == made.created
    assert claimed.modified >= made.modified
    assert timedelta(minutes=4) < claimed.at - made.at < timedelta(minutes=6)
    assert claimed.at.utcoffset() == timedelta(0)


def test_a_claimed_task_is_not_handed_out_again(queue: Queue) -> None:
    put(queue, Insert(queue="q"))
    assert queue.try_claim(["q"], claimant="a", lease=LEASE) is not None
    assert queue.try_claim(["q"], claimant="b", lease=LEASE) is None
    assert queue.try_claim(["q"], claimant="a", lease=LEASE) is None


@gated
@pytest.mark.parametrize("sequence", [None, 7])
def test_a_future_task_is_handed_out_when_it_is_due_and_not_before(queue: Queue, sequence: int | None) -> None:
    put(queue, Insert(queue="q", sequence=sequence, at=NEVER))
    assert queue.try_claim(["q"], claimant="a", lease=LEASE) is None
    (made,) = put(queue, Insert(queue="due", sequence=sequence, at=SOON))
    claimed = queue.claim(["due"], claimant="a", lease=LEASE, timeout=LONG)
    assert claimed is not None
    assert made.at <= claimed.modified < made.at + LONG / 2


def test_a_wait_for_a_task_ends_when_a_queue_to_be_told_of_changes(queue: Queue) -> None:
    (going,) = put(queue, Insert(queue="other", at=NEVER))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(
            lambda: queue.claim(["q"], claimant="a", lease=LEASE, timeout=10 * LONG, wake=["other", "q"])
        )
        while not waiting.done():
            (going,) = put_again(queue, going)
        assert waiting.result() is None


def put_again(queue: Queue, task: Task) -> tuple[Task, ...]:
    queue.modify(claimant="maker", delete=[task.ref])
    return put(queue, Insert(queue=task.queue, at=NEVER))


@gated
@pytest.mark.parametrize("sequence", [None, 7])
def test_a_lost_lease_is_handed_out_anew_and_its_first_holder_is_refused(queue: Queue, sequence: int | None) -> None:
    put(queue, Insert(queue="q", sequence=sequence))
    lost = queue.try_claim(["q"], claimant="a", lease=SOON)
    assert lost is not None
    taken = queue.claim(["q"], claimant="b", lease=LEASE, timeout=LONG)
    assert taken is not None
    assert (taken.task_id, taken.claims, taken.claimant) == (lost.task_id, 2, "b")
    with pytest.raises(DependencyError) as renewal:
        queue.renew(lost, claimant="a", lease=LEASE)
    assert renewal.value.changes[0].reason is FailureReason.WRONG_VERSION
    with pytest.raises(DependencyError) as deletion:
        queue.modify(claimant="a", delete=[lost.ref])
    assert deletion.value.deletes[0].reason is FailureReason.WRONG_VERSION
    queue.modify(claimant="b", delete=[taken.ref])


def test_an_expired_lease_that_nobody_took_can_still_be_finished(queue: Queue) -> None:
    put(queue, Insert(queue="q"))
    late = queue.try_claim(["q"], claimant="a", lease=NOW)
    assert late is not None
    queue.modify(claimant="a", delete=[late.ref])
    assert queue.tasks("q") == ()


@gated
def test_a_renewal_holds_the_task_for_another_lease(queue: Queue) -> None:
    put(queue, Insert(queue="q", value="kept"))
    held = queue.try_claim(["q"], claimant="a", lease=SOON)
    assert held is not None
    renewed = queue.renew(held, claimant="a", lease=LEASE)
    assert (renewed.version, renewed.claims, renewed.claimant) == (held.version + 1, 1, "a")
    assert renewed.value == "kept"
    assert renewed.at > held.at
    assert queue.claim(["q"], claimant="b", lease=LEASE, timeout=2 * SOON) is None


@gated
def test_a_renewal_with_a_shorter_lease_is_noticed_by_those_who_wait(open_client: Open) -> None:
    queue = open_client()
    put(queue, Insert(queue="q"))
    held = queue.try_claim(["q"], claimant="a", lease=LEASE)
    assert held is not None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(open_client().claim, ["q"], claimant="b", lease=LEASE, timeout=LONG)
        queue.renew(held, claimant="a", lease=SOON)
        taken = waiting.result(timeout=120)
    assert taken is not None
    assert (taken.task_id, taken.claimant) == (held.task_id, "b")


def test_a_renewal_says_why_the_task_is_not_ours(queue: Queue) -> None:
    free, gone = put(queue, Insert(queue="free"), Insert(queue="gone"))
    queue.modify(claimant="maker", delete=[gone.ref])
    held = queue.try_claim(["free"], claimant="a", lease=LEASE)
    assert held is not None
    for task, claimant, reason in (
        (gone, "a", FailureReason.MISSING),
        (free, "a", FailureReason.WRONG_VERSION),
        (held, "b", FailureReason.CLAIMED),
    ):
        with pytest.raises(DependencyError) as refused:
            queue.renew(task, claimant=claimant, lease=LEASE)
        assert [failure.reason for failure in refused.value.changes] == [reason]
    (freed,) = queue.modify(claimant="a", change=[Change(ref=held.ref, value=None)])
    with pytest.raises(DependencyError) as refused:
        queue.renew(freed, claimant="a", lease=LEASE)
    assert [failure.reason for failure in refused.value.changes] == [FailureReason.NOT_HELD]


@gated
def test_a_spread_queue_hands_out_at_random_and_older_tasks_sooner(queue: Queue) -> None:
    """Twelve tasks, an hour apart; each that was claimed is put back where it stood."""
    ages = [-timedelta(hours=12 - n) for n in range(12)]
    put(queue, *(Insert(queue="q", value=n, at=age) for n, age in enumerate(ages)))
    met: Counter[int] = Counter()
    for _ in range(120):
        task = queue.try_claim(["q"], claimant="a", lease=LEASE)
        assert task is not None
        met[task.value] += 1
        queue.modify(claimant="a", change=[Change(ref=task.ref, value=task.value, at=ages[task.value])])
    # Seven of ten are of the older half, so by chance alone this fails once in a million runs.
    assert len(met) > 2
    assert sum(met[n] for n in range(6)) > sum(met[n] for n in range(6, 12))


def test_claims_go_to_all_queues_that_they_name_in_no_fixed_order(queue: Queue) -> None:
    put(queue, *(Insert(queue=name) for name in ("x", "y") for _ in range(20)))
    met = {task.queue for _ in range(20) if (task := queue.try_claim(["x", "y"], claimant="a", lease=LEASE))}
    assert met == {"x", "y"}


def test_many_tasks_are_claimed_in_one_call(queue: Queue) -> None:
    made = put(queue, *(Insert(queue=f"q{n % 2}", value=n) for n in range(10)), Insert(queue="q0", at=NEVER))
    first = queue.claim_many(["q0", "q1", "none"], claimant="a", lease=LEASE, limit=7)
    rest = queue.claim_many(["q0", "q1"], claimant="b", lease=LEASE, limit=7, timeout=LONG)
    assert (len(first), len(rest)) == (7, 3)
    assert sorted(task.value for task in (*first, *rest)) == list(range(10))
    for task in first:
        (before,) = (one for one in made if one.task_id == task.task_id)
        assert (task.version, task.claims, task.claimant) == (before.version + 1, 1, "a")
        assert timedelta(minutes=4) < task.at - before.at < timedelta(minutes=6)
    assert queue.claim_many(["q0", "q1"], claimant="b", lease=LEASE, limit=7) == ()
    queue.modify(claimant="a", delete=[task.ref for task in first])
    queue.modify(claimant="b", delete=[task.ref for task in rest])
    assert [row.size for row in queue.queue_stats()] == [1]


def test_a_strict_queue_gives_its_head_and_no_more_however_many_are_wanted(queue: Queue) -> None:
    put(queue, *(Insert(queue="strict", sequence=n) for n in range(5)), *(Insert(queue="spread") for _ in range(3)))
    claimed = queue.claim_many(["strict", "spread"], claimant="a", lease=LEASE, limit=10)
    assert sorted((task.queue, task.sequence) for task in claimed) == [("spread", None)] * 3 + [("strict", 0)]


def test_a_wait_for_many_ends_with_the_first(open_client: Open) -> None:
    queue = open_client()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(open_client().claim_many, ["q"], claimant="a", lease=LEASE, limit=50, timeout=10 * LONG)
        put(queue, Insert(queue="q"))
        assert len(waiting.result(timeout=120)) == 1


@pytest.mark.parametrize("limit", [0, -1, 10_001])
def test_a_claim_of_no_or_too_many_tasks_is_refused(queue: Queue, limit: int) -> None:
    with pytest.raises(ValueError, match="a claim is for 1 to 10000 tasks"):
        queue.claim_many(["q"], claimant="a", lease=LEASE, limit=limit)


def test_many_at_once_share_a_queue_without_a_task_twice(open_client: Open) -> None:
    count = 300
    put(open_client(), *(Insert(queue="q", value=n) for n in range(count)))

    def work(name: str) -> list[int]:
        queue, done = open_client(), []
        while tasks := queue.claim_many(["q"], claimant=name, lease=LEASE, limit=40):
            queue.modify(claimant=name, delete=[task.ref for task in tasks])
            done += [task.value for task in tasks]
        return done

    with ThreadPoolExecutor(4) as pool:
        done = [value for values in pool.map(work, [f"w{n}" for n in range(4)]) for value in values]
    assert sorted(done) == list(range(count))


def test_a_claim_takes_from_every_queue_that_it_names(queue: Queue) -> None:
    put(queue, Insert(queue="x"), Insert(queue="y", sequence=0), Insert(queue="z"))
    claimed = [queue.try_claim(["x", "y", "none"], claimant="a", lease=LEASE) for _ in range(3)]
    assert {task.queue for task in claimed if task} == {"x", "y"}
    assert claimed[2] is None


@gated
def test_a_waiting_claim_wakes_on_an_insert_not_at_a_poll(open_client: Open) -> None:
    """Two workers hand a task to and fro: each of the 40 waits would end in vain, or cost a poll's interval."""
    rounds = 20

    def answer(mine: str, other: str) -> None:
        queue = open_client()
        for _ in range(rounds):
            task = queue.claim([mine], claimant=mine, lease=LEASE, timeout=LONG)
            assert task is not None
            queue.modify(claimant=mine, delete=[task.ref], insert=[Insert(queue=other)])

    with ThreadPoolExecutor(2) as pool:
        workers = [pool.submit(answer, "ping", "pong"), pool.submit(answer, "pong", "ping")]
        started = time.monotonic()
        put(open_client(), Insert(queue="ping"))
        for worker in workers:
            worker.result(timeout=120)
    assert time.monotonic() - started < LONG.total_seconds()


@gated
@pytest.mark.parametrize("how", ["freed", "moved", "brought forward", "head finished"])
def test_a_waiting_claim_wakes_when_a_task_comes_free(open_client: Open, how: str) -> None:
    queue = open_client()
    if how == "head finished":
        head, target = put(queue, Insert(queue="q", sequence=0, at=NEVER), Insert(queue="q", sequence=1))
    else:
        (target,) = put(queue, Insert(queue="other" if how == "moved" else "q", at=NEVER))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(open_client().claim, ["q"], claimant="a", lease=LEASE, timeout=LONG)
        match how:
            case "freed":
                queue.modify(claimant="b", change=[Change(ref=target.ref, value=None)])
            case "moved":
                queue.modify(claimant="b", change=[Change(ref=target.ref, value=None, queue="q")])
            case "brought forward":
                queue.modify(claimant="b", change=[Change(ref=target.ref, value=None, at=SOON)])
            case _:
                queue.modify(claimant="b", delete=[head.ref])
        started = time.monotonic()
        claimed = waiting.result(timeout=120)
        assert time.monotonic() - started < LONG.total_seconds() / 2
    assert claimed is not None
    assert claimed.task_id == target.task_id


@gated
def test_many_workers_do_each_task_once(open_client: Open) -> None:
    count = 120
    queue = open_client()
    put(queue, *(Insert(queue=f"q{n % 3}", value=n) for n in range(count)))
    shared = open_client()

    def work(name: str) -> list[int]:
        done = []
        while (task := shared.try_claim(["q0", "q1", "q2"], claimant=name, lease=LEASE)) is not None:
            shared.modify(claimant=name, delete=[task.ref], insert=[Insert(queue="done", value=task.value)])
            done.append(task.value)
        return done

    with ThreadPoolExecutor(6) as pool:
        done = [value for values in pool.map(work, [f"w{n}" for n in range(6)]) for value in values]
    assert Counter(done) == Counter(range(count))
    assert Counter(task.value for task in queue.tasks("done")) == Counter(range(count))


@gated
def test_a_queue_that_comes_and_goes_all_the_time_loses_no_task(open_client: Open) -> None:
    """Each task is the only one of its queue as it comes and as it goes: whoever cleans up meets who puts."""
    rounds, makers = 60, 3
    queue = open_client()
    done: list[tuple[int, int]] = []

    def make(maker: int) -> None:
        client = open_client()
        for turn in range(rounds):
            put(client, Insert(queue="q", value=[maker, turn]))

    def take(name: str) -> None:
        client = open_client()
        while len(done) < rounds * makers:
            task = client.claim(["q"], claimant=name, lease=LEASE, timeout=SOON)
            if task is not None:
                client.modify(claimant=name, delete=[task.ref])
                done.append(tuple(task.value))

    with ThreadPoolExecutor(2 * makers) as pool:
        running = [pool.submit(make, maker) for maker in range(makers)]
        running += [pool.submit(take, f"taker {taker}") for taker in range(makers)]
        for one in running:
            one.result(timeout=120)
    assert sorted(done) == [(maker, turn) for maker in range(makers) for turn in range(rounds)]
    assert queue.queue_stats() == ()


def test_a_closed_queue_refuses_calls_and_lets_waiting_ones_go(open_client: Open) -> None:
    queue = open_client()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.claim, ["q"], claimant="a", lease=LEASE, timeout=timedelta(minutes=5))
        queue.close()
        queue.close()
        with pytest.raises(QueueError):
            waiting.result(timeout=120)
    with pytest.raises(QueueError):
        queue.tasks("q")
