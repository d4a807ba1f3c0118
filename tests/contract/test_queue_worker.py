"""The worker, on every backend: what becomes of a task when its function returns, raises, or loses the lease."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from airflow_parallel_apply.queue import Insert, Queue, QueueUnavailable, Task, TaskRef
from airflow_parallel_apply.queue import worker as worker_module
from airflow_parallel_apply.queue.worker import Done, Held, LeaseLost, RetryPolicy, Worker
from tests.contract.queue_backends import Open
from tests.support.queue_service import until
from tests.support.variants import gated

LONG = timedelta(seconds=30)
SHORT_LEASE = timedelta(milliseconds=1500)
RENEWED = timedelta(seconds=4)
"""A lease that is not lost where a busy machine lets a renewal wait."""
AT_ONCE = RetryPolicy(max_attempts=3, delay=timedelta(0), max_delay=timedelta(0))


def put(queue: Queue, *inserts: Insert) -> tuple[Task, ...]:
    return queue.modify(claimant="maker", insert=inserts)


def worker(queue: Queue, *, lease: timedelta = LONG, retry: RetryPolicy | None = None) -> Worker:
    return Worker(queue, ["q"], claimant="ann", lease=lease, retry=retry)


def failing(_: Held) -> None:
    raise RuntimeError("no \0 way \ud800")


def test_a_task_whose_function_returns_is_deleted_together_with_what_it_asked_for(queue: Queue) -> None:
    put(queue, Insert(queue="q", value=7))
    done = worker(queue).run_one(
        lambda held: Done(insert=[Insert(queue="results", value=held.value * 2)]), timeout=LONG
    )
    assert done is True
    assert queue.tasks("q") == ()
    assert [task.value for task in queue.tasks("results")] == [14]
    assert worker(queue).run_one(lambda _: None, timeout=timedelta(0)) is None


def test_a_task_that_fails_is_retried_with_its_error_and_quarantined_after_its_attempts(queue: Queue) -> None:
    (made,) = put(queue, Insert(queue="q", value="kept"))
    one = worker(queue, retry=AT_ONCE)
    for attempt in (1, 2):
        assert one.run_one(failing, timeout=LONG) is False
        (task,) = queue.tasks("q")
        assert (task.attempt, task.err, task.claimant, task.value) == (attempt, "RuntimeError: no  way ?", None, "kept")
    assert one.run_one(failing, timeout=LONG) is False
    (task,) = queue.tasks("q/err")
    assert (task.task_id, task.attempt, task.claims, task.claimant) == (made.task_id, 3, 3, None)
    assert queue.tasks("q") == ()


def test_a_retry_waits_longer_each_time(queue: Queue) -> None:
    policy = RetryPolicy(max_attempts=9, delay=timedelta(minutes=1), max_delay=timedelta(minutes=3))
    assert [policy.delay_after(attempt) for attempt in (1, 2, 3, 99)] == [timedelta(minutes=n) for n in (1, 2, 3, 3)]
    put(queue, Insert(queue="q"))
    worker(queue, retry=policy).run_one(failing, timeout=LONG)
    (task,) = queue.tasks("q")
    assert timedelta(seconds=50) < task.at - task.modified < timedelta(seconds=70)


def test_a_strict_queues_head_is_not_quarantined_but_holds_up_the_rest(queue: Queue) -> None:
    put(queue, Insert(queue="q", sequence=1), Insert(queue="q", sequence=2))
    one = worker(queue, retry=RetryPolicy(max_attempts=1))
    assert one.run_one(failing, timeout=LONG) is False
    assert one.run_one(failing, timeout=timedelta(0)) is None
    head, behind = queue.tasks("q")
    assert (head.sequence, head.attempt, head.claimant, behind.claims) == (1, 1, None, 0)
    assert head.err.startswith("RuntimeError")
    assert queue.queue_stats()[0].future == 1


@gated
def test_a_lease_is_renewed_for_as_long_as_the_work_takes(open_client: Open) -> None:
    queue, other = open_client(), open_client()
    put(queue, Insert(queue="q"))

    def slow(held: Held) -> None:
        # Twice, each time half a lease behind the time before.
        until(lambda: other.tasks("q")[0].at > held.task.at + 0.75 * RENEWED)
        held.check()

    assert worker(queue, lease=RENEWED).run_one(slow, timeout=LONG) is True
    assert queue.queue_stats() == ()


@gated
def test_work_whose_lease_is_lost_is_told_at_once_and_changes_nothing(open_client: Open) -> None:
    queue, other = open_client(), open_client()
    put(queue, Insert(queue="q"))
    told = threading.Event()

    def robbed(held: Held) -> Done:
        held.when_lost(told.set)
        (now,) = other.tasks("q")
        # As its holder, since another one would be refused.
        other.modify(claimant="ann", delete=[now.ref])
        assert told.wait(120)
        with pytest.raises(LeaseLost):
            held.check()
        again = threading.Event()
        held.when_lost(again.set)
        assert again.is_set()
        return Done(insert=[Insert(queue="never")])

    assert worker(queue, lease=SHORT_LEASE).run_one(robbed, timeout=LONG) is False
    assert queue.queue_stats() == ()


def test_a_refused_finish_is_a_failure_of_the_task(queue: Queue) -> None:
    (_, other) = put(queue, Insert(queue="q"), Insert(queue="other"))
    stale = TaskRef(task_id=other.task_id, version=9)
    assert worker(queue).run_one(lambda _: Done(depend=[stale]), timeout=LONG) is False
    (task,) = queue.tasks("q")
    assert (task.attempt, task.err.startswith("DependencyError: modify refused: depend")) == (1, True)


def test_what_no_queue_could_do_for_a_function_is_a_failure_of_the_task(queue: Queue) -> None:
    put(queue, Insert(queue="q"))
    one = worker(queue, retry=RetryPolicy(max_attempts=1))
    assert one.run_one(lambda _: Done(insert=[Insert(queue="")]), timeout=LONG) is False
    (task,) = queue.tasks("q/err")
    assert task.err.startswith("ValueError: a queue's name")


def test_a_task_that_its_quarantine_does_not_take_stays_and_is_failed(queue: Queue) -> None:
    put(queue, Insert(queue="q"), Insert(queue="q/err", sequence=1))
    one = worker(queue, retry=RetryPolicy(max_attempts=1))
    assert one.run_one(failing, timeout=LONG) is False
    (task,) = queue.tasks("q")
    assert (task.attempt, task.claimant, task.err[:12], task.at.year) == (1, None, "RuntimeError", 9000)


@gated
def test_many_workers_finish_each_task_once(open_client: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    count, threads = 60, 4
    # So long an idle worker waits before it looks whether it is to stop.
    monkeypatch.setattr(worker_module, "_IDLE", timedelta(milliseconds=200))
    queue = open_client()
    put(queue, *(Insert(queue="q", value=n) for n in range(count)))
    seen: Counter[int] = Counter()

    def work(held: Held) -> Done:
        seen[held.value] += 1
        if held.value % 10 == 0 and held.task.attempt == 0:
            raise RuntimeError("the first time")
        return Done(insert=[Insert(queue="results", value=held.value)])

    stop = threading.Event()
    with ThreadPoolExecutor(threads) as pool:
        running = [
            pool.submit(Worker(open_client(), ["q"], claimant=f"w{n}", retry=AT_ONCE).run, work, stop=stop)
            for n in range(threads)
        ]
        assert queue.wait_empty(exact=["q"], timeout=timedelta(minutes=1))
        stop.set()
        assert sum(one.result(timeout=180) for one in running) == count
    assert sorted(task.value for task in queue.tasks("results")) == list(range(count))
    assert all(times == (2 if value % 10 == 0 else 1) for value, times in seen.items())


@gated
def test_a_renewal_whose_answer_was_lost_does_not_lose_the_lease(open_client: Open) -> None:
    queue = open_client()
    put(queue, Insert(queue="q"))
    renewed = threading.Event()
    renew, calls = queue.renew, Counter[str]()

    def forgetful(task: Task, *, claimant: str, lease: timedelta) -> Task:
        done = renew(task, claimant=claimant, lease=lease)
        calls["renew"] += 1
        if calls["renew"] == 1:
            raise QueueUnavailable("the answer was lost")
        renewed.set()
        return done

    queue.renew = forgetful  # type: ignore[method-assign]

    def slow(held: Held) -> None:
        assert renewed.wait(120)
        held.check()

    assert worker(queue, lease=RENEWED).run_one(slow, timeout=LONG) is True
    assert queue.queue_stats() == ()
