"""Locks of the memory backend hold up only those who want the same queue, and readers hold up nobody for long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from airflow_parallel_apply.queue import Change, Insert, QueueError, Task
from airflow_parallel_apply.queue.memory import Engine, MemoryQueue
from airflow_parallel_apply.queue.memory.listing import PAGE_TASKS

LEASE = timedelta(minutes=5)


class Clock:
    """Time that moves by hand."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


class Refusing:
    """A journal whose disk is full, for a while."""

    position = 0
    full = False

    def append(self, puts: object, deletes: object) -> int:
        if self.full:
            raise QueueError("full")
        return 0

    def wait(self, position: int) -> None:
        pass


def put(engine: Engine, *queues: str, sequence: int | None = None) -> tuple[Task, ...]:
    return engine.modify(
        claimant="maker", insert=[Insert(queue=name, value="null", sequence=sequence) for name in queues]
    )


@contextmanager
def held(engine: Engine, name: str) -> Iterator[None]:
    task_queue = engine.task_queues.find(name)
    assert task_queue is not None
    with task_queue.lock:
        yield


def test_a_queue_that_somebody_holds_holds_up_no_other_one() -> None:
    engine = Engine()
    (one,) = put(engine, "held")
    with ThreadPoolExecutor(1) as pool, held(engine, "held"):

        def work() -> tuple[Task, ...]:
            put(engine, "free", "free")
            engine.modify(claimant="a", delete=[next(engine.listing.tasks("free")).ref])
            assert engine.listing.queue_stats(exact=["free"])[0].size == 1
            return engine.claim_now(["free"], claimant="a", lease=LEASE)

        claimed = pool.submit(work).result(timeout=120)
        waiting = pool.submit(engine.modify, claimant="a", delete=[one.ref])
        assert not waiting.done()
    assert len(claimed) == 1
    assert waiting.result(timeout=120) == ()


def test_a_listing_lets_everybody_in_between_its_pages() -> None:
    engine = Engine()
    made = put(engine, *["q"] * (3 * PAGE_TASKS))
    listing = engine.listing.tasks("q")
    met = [next(listing)]
    (head,) = engine.claim_now(["q"], claimant="a", lease=LEASE)
    deleted = sorted(made, key=lambda task: task.task_id)[-1]
    engine.modify(claimant="a", delete=[deleted.ref])
    put(engine, "another")
    met += listing
    # What nobody touched is met once, in order; the claimed one as it was and as it is, the deleted one not any more.
    untouched = [task for task in met if task.claims == 0]
    assert [task.task_id for task in untouched] == sorted(task.task_id for task in made)[:-1]
    assert [task for task in met if task.claims] == [head]


def test_a_queue_that_vanished_while_a_modify_waited_for_it_is_made_anew() -> None:
    """The task that the seed lost: put on a task queue that was just taken down."""
    engine = Engine()
    (last,) = put(engine, "q")
    old = engine.task_queues.find("q")
    assert old is not None
    looked_up = threading.Event()
    hold = engine.task_queues.hold

    @contextmanager
    def slow(involved):
        def and_tell(where):
            names = involved(where)
            if names == {"q"} and not looked_up.is_set():
                looked_up.set()
            return names

        with hold(and_tell) as task_queues:
            yield task_queues

    with ThreadPoolExecutor(1) as pool:
        with old.lock:
            engine.task_queues.hold = slow
            putting = pool.submit(put, engine, "q")
            assert looked_up.wait(120)
            engine.task_queues.hold = hold
            # As a deletion of the last task ends, by whoever holds the lock.
            old.remove([last.task_id.int])
            engine.task_queues.forget([last.task_id.int])
            old.removed = True
            del engine.task_queues._by_name["q"]
        (made,) = putting.result(timeout=120)
    assert engine.task_queues.find("q") is not old
    assert list(engine.listing.tasks("q")) == [made]


def test_a_refused_modify_leaves_no_queue_and_no_id_behind() -> None:
    journal = Refusing()
    engine = Engine(journal=journal)
    (kept,) = put(engine, "kept")
    journal.full = True
    wanted = Insert(queue="new", value="null", task_id=kept.task_id)
    with pytest.raises(QueueError, match="full"):
        engine.modify(
            claimant="a",
            insert=[Insert(queue="new", value="null")],
            change=[Change(ref=kept.ref, value="1", queue="moved")],
        )
    with pytest.raises(QueueError, match="full"):
        engine.claim_now(["kept"], claimant="a", lease=LEASE)
    assert list(engine.listing.tasks("kept")) == [kept]
    assert engine.task_queues.names() == ["kept"]
    journal.full = False
    engine.modify(claimant="a", delete=[kept.ref])
    assert engine.modify(claimant="a", insert=[wanted])[0].queue == "new"


def test_statistics_follow_the_clock_alone() -> None:
    clock = Clock()
    engine = Engine(clock=clock)
    for name, sequences in (("strict", (1, 2)), ("spread", (None, None))):
        for sequence in sequences:
            delay = None if sequence in (1, None) else timedelta(hours=1)
            engine.modify(claimant="a", insert=[Insert(queue=name, value="null", sequence=sequence, at=delay)])
        assert engine.claim_now([name], claimant="a", lease=timedelta(minutes=1))
    counts = [(row.claimed, row.available, row.future) for row in engine.listing.queue_stats()]
    assert counts == [(1, 1, 0), (1, 0, 1)]
    clock.now += timedelta(minutes=1)
    assert [(row.claimed, row.available, row.future) for row in engine.listing.queue_stats()] == [(0, 2, 0), (0, 1, 1)]
    clock.now += timedelta(hours=1)
    assert [(row.claimed, row.available, row.future) for row in engine.listing.queue_stats()] == [(0, 2, 0), (0, 2, 0)]


def test_a_client_that_closes_leaves_the_engine_to_the_others() -> None:
    engine = Engine()
    first, second = MemoryQueue(engine), MemoryQueue(engine)
    first.modify(claimant="a", insert=[Insert(queue="q", value={"n": 1})])
    first.close()
    with pytest.raises(QueueError, match="closed"):
        first.try_claim(["q"], claimant="a", lease=LEASE)
    assert [task.value for task in second.tasks("q")] == [{"n": 1}]


def test_a_listed_value_is_the_readers_own() -> None:
    queue = MemoryQueue()
    queue.modify(claimant="a", insert=[Insert(queue="q", value=[1])])
    queue.tasks("q")[0].value.append(2)
    assert queue.tasks("q")[0].value == [1]
