"""Listing, statistics, and waiting until queues are empty."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from airflow_parallel_apply.queue import Change, Insert, Queue, QueueStats, Task, TaskId
from tests.contract.queue_backends import Open

LEASE = timedelta(minutes=5)
NEVER = datetime(9000, 1, 1, tzinfo=UTC)


def put(queue: Queue, *inserts: Insert) -> tuple[Task, ...]:
    return queue.modify(claimant="maker", insert=inserts)


def test_statistics_are_exact(queue: Queue) -> None:
    put(
        queue,
        *(Insert(queue="p/spread") for _ in range(5)),
        *(Insert(queue="p/spread", at=NEVER) for _ in range(2)),
        *(Insert(queue="p/strict", sequence=n) for n in range(4)),
        Insert(queue="single"),
    )
    for name in ("p/spread", "p/spread", "p/strict"):
        assert queue.try_claim([name], claimant="a", lease=LEASE) is not None
    freed = queue.try_claim(["single"], claimant="a", lease=LEASE)
    assert freed is not None
    queue.modify(claimant="a", change=[Change(ref=freed.ref, value=None)])
    spread = QueueStats(queue="p/spread", size=7, claimed=2, available=3, future=2, max_claims=1)
    strict = QueueStats(queue="p/strict", size=4, claimed=1, available=3, future=0, max_claims=1)
    single = QueueStats(queue="single", size=1, claimed=0, available=1, future=0, max_claims=1)
    assert queue.queue_stats() == (spread, strict, single)
    assert queue.queue_stats(prefix=["p/"]) == (spread, strict)
    assert queue.queue_stats(prefix=["p/sp", "no"], exact=["single", "p"]) == (spread, single)
    assert queue.queue_stats(limit=1) == (spread,)
    assert queue.queue_stats(exact=["none"]) == ()


def test_a_queue_vanishes_with_its_last_task(queue: Queue) -> None:
    made = put(queue, Insert(queue="q"), Insert(queue="q"))
    queue.modify(claimant="a", delete=[task.ref for task in made])
    assert queue.queue_stats() == ()


def test_listing_is_in_order_and_filters(queue: Queue) -> None:
    put(queue, *(Insert(queue="strict", sequence=n, value=n, at=NEVER if n == 2 else None) for n in (3, 1, 2)))
    put(queue, *(Insert(queue="spread", value=age, at=-timedelta(seconds=age)) for age in (1, 3, 2)))
    assert [task.value for task in queue.tasks("strict")] == [1, 2, 3]
    assert [task.value for task in queue.tasks("spread")] == [3, 2, 1]
    assert [task.value for task in queue.tasks("strict", limit=2)] == [1, 2]
    assert queue.tasks("strict", limit=0) == ()
    assert [task.value for task in queue.tasks("strict", limit=1, omit_values=True)] == [None]
    claimed = queue.try_claim(["spread"], claimant="a", lease=LEASE)
    assert queue.tasks("spread", claimant="a") == (claimed,)
    strict = queue.tasks("strict")
    assert queue.tasks("strict", ids=[strict[2].task_id, strict[0].task_id, TaskId(uuid4())]) == (strict[0], strict[2])
    assert queue.tasks("spread", ids=[strict[0].task_id]) == ()


@pytest.mark.parametrize("strict", [True, False])
def test_pages_of_a_listing_follow_each_other(queue: Queue, strict: bool) -> None:
    at = datetime(2020, 1, 1, tzinfo=UTC)
    made = put(
        queue,
        *(
            Insert(queue="q", sequence=n if strict else None, value=n, at=at + timedelta(seconds=n // 3))
            for n in range(10)
        ),
        Insert(queue="other", value="other", at=at),
    )
    whole = queue.tasks("q")
    assert len(whole) == 10
    pages, last = [], None
    while page := queue.tasks("q", limit=4, after=last):
        pages.append(page)
        last = page[-1]
    assert [len(page) for page in pages] == [4, 4, 2]
    assert sum(pages, ()) == whole
    assert queue.tasks("q", after=whole[6], ids=[task.task_id for task in made]) == whole[7:]
    # A task that is gone still says where the next page begins.
    queue.modify(claimant="a", delete=[whole[3].ref])
    assert queue.tasks("q", after=whole[3]) == whole[4:]


def test_the_last_sequence_that_there_is_has_nothing_behind_it(queue: Queue) -> None:
    (last,) = put(queue, Insert(queue="q", sequence=2**63 - 1))
    assert queue.tasks("q", after=last) == ()


def test_waiting_for_empty_queues_ends_when_the_last_task_goes(open_client: Open) -> None:
    queue = open_client()
    mine, other = put(queue, Insert(queue="p/q"), Insert(queue="other"))
    assert queue.wait_empty(prefix=["none"], timeout=timedelta(0))
    assert not queue.wait_empty(timeout=timedelta(milliseconds=20))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(open_client().wait_empty, prefix=["p/"], timeout=timedelta(seconds=120))
        queue.modify(claimant="a", delete=[mine.ref])
        assert waiting.result(timeout=180)
    assert not queue.wait_empty(exact=["other", "more"], timeout=timedelta(0))
    queue.modify(claimant="a", change=[Change(ref=other.ref, value=None, queue="elsewhere")])
    assert queue.wait_empty(exact=["other", "more"], timeout=timedelta(0))
