"""A pool keeps the order of its works, bounds what waits, ends with every error, and leaves no worker behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.encode.pool import PIECES_AHEAD, WORKS_AHEAD, Pool
from airflow_parallel_apply.pipeline.encode.progress import Encoded, Progress
from airflow_parallel_apply.pipeline.errors import ConfigurationError, EncodeError, Unavailable


def works(
    counts: list[int], pause: Callable[[], None] = lambda: None
) -> Iterator[Callable[[], Iterator[tuple[int, int]]]]:
    def work(number: int, count: int) -> Iterator[tuple[int, int]]:
        for piece in range(count):
            pause()
            yield number, piece

    for number, count in enumerate(counts):
        yield partial(work, number, count)


@pytest.mark.parametrize("threads", [1, 2, 4, 16])
@given(
    counts=st.lists(st.integers(0, 12), max_size=12),
    pauses=st.lists(st.sampled_from([0.0, 0.0, 0.0005]), min_size=1, max_size=7),
)
def test_pieces_come_in_the_order_of_works_whatever_each_takes(
    threads: int, counts: list[int], pauses: list[float]
) -> None:
    turn = iter(range(10**6))
    taken: list[tuple[int, int]] = []
    Pool(threads=threads).ordered(works(counts, lambda: time.sleep(pauses[next(turn) % len(pauses)])), taken.append)
    assert taken == [(number, piece) for number, count in enumerate(counts) for piece in range(count)]


@pytest.mark.parametrize("threads", [0, -1])
def test_a_pool_without_threads_is_refused(threads: int) -> None:
    with pytest.raises(ConfigurationError, match="threads"):
        Pool(threads=threads)


def test_what_nobody_takes_yet_is_bounded() -> None:
    threads = 2
    made: list[int] = []
    drawn: list[int] = []
    highest: list[tuple[int, int]] = []

    def work() -> Iterator[int]:
        for piece in range(50):
            made.append(piece)
            yield piece

    def draw() -> Iterator[Callable[[], Iterator[int]]]:
        for number in range(50):
            drawn.append(number)
            yield work

    taken: list[int] = []

    def take(piece: int) -> None:
        taken.append(piece)
        highest.append((len(made) - len(taken), len(drawn) - len(taken) // 50))

    Pool(threads=threads).ordered(draw(), take)
    # Each open work has its pieces ahead, and its worker one in hand.
    assert max(pieces for pieces, _ in highest) <= threads * WORKS_AHEAD * (PIECES_AHEAD + 1)
    assert max(works for _, works in highest) <= threads * WORKS_AHEAD + 1
    assert len(taken) == 2500


def test_works_of_few_pieces_are_done_while_nobody_takes_the_first() -> None:
    threads = 2
    ahead = threads * WORKS_AHEAD
    done = threading.Semaphore(0)

    def work(number: int) -> Iterator[tuple[int, int]]:
        if number == 0:
            # All others that may be drawn are made by the other worker, with what they have waiting.
            assert all(done.acquire(timeout=120) for _ in range(ahead - 1))
        for piece in range(PIECES_AHEAD):
            yield number, piece
        done.release()

    taken: list[tuple[int, int]] = []
    Pool(threads=threads).ordered((partial(work, number) for number in range(ahead)), taken.append)
    assert taken == [(number, piece) for number in range(ahead) for piece in range(PIECES_AHEAD)]


def test_the_next_works_are_read_while_every_worker_is_busy() -> None:
    read = threading.Event()

    def draw() -> Iterator[Callable[[], Iterator[bool]]]:
        yield lambda: iter([read.wait(120)])
        read.set()
        yield lambda: iter([True])

    taken: list[bool] = []
    Pool(threads=1).ordered(draw(), taken.append)
    assert taken == [True, True]


def test_every_workers_error_is_in_one() -> None:
    both = threading.Barrier(2)

    def fails(number: int) -> Iterator[int]:
        both.wait(120)
        raise ValueError(f"worker {number}")
        yield 0

    with pytest.raises(EncodeError, match="2 workers failed: ValueError: worker") as error:
        Pool(threads=2).ordered((partial(fails, number) for number in range(2)), lambda piece: None)
    assert isinstance(error.value.__cause__, BaseExceptionGroup)
    assert {str(one) for one in error.value.__cause__.exceptions} == {"worker 0", "worker 1"}
    assert_no_worker_is_left()


def test_errors_that_can_be_retried_together_can_be_retried() -> None:
    both = threading.Barrier(2)

    def fails() -> Iterator[int]:
        both.wait(120)
        raise Unavailable("away")
        yield 0

    with pytest.raises(Unavailable, match="2 workers failed"):
        Pool(threads=2).ordered((fails for _ in range(2)), lambda piece: None)


def test_an_interrupt_is_not_hidden_among_errors() -> None:
    both = threading.Barrier(2)

    def fails(error: BaseException) -> Iterator[int]:
        both.wait(120)
        raise error
        yield 0

    with pytest.raises(KeyboardInterrupt):
        Pool(threads=2).ordered(
            (partial(fails, error) for error in (ValueError("a"), KeyboardInterrupt())), lambda piece: None
        )


def test_an_error_ends_the_others_and_nothing_behind_it_is_taken() -> None:
    taken: list[tuple[int, int]] = []

    def take(piece: tuple[int, int]) -> None:
        if piece == (1, 2):
            raise ValueError("the consumer")
        taken.append(piece)

    with pytest.raises(ValueError, match="the consumer"):
        Pool(threads=4).ordered(works([3] * 100), take)
    assert taken == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert_no_worker_is_left()


def test_an_error_in_drawing_works_is_raised() -> None:
    def draw() -> Iterator[Callable[[], Iterator[int]]]:
        yield lambda: iter([1])
        raise ValueError("no more rows")

    with pytest.raises(ValueError, match="no more rows"):
        Pool(threads=2).ordered(draw(), lambda piece: None)
    assert_no_worker_is_left()


def test_a_cancelled_pool_ends_with_workers_that_wait() -> None:
    cancelled = threading.Event()
    taken: list[tuple[int, int]] = []

    def take(piece: tuple[int, int]) -> None:
        taken.append(piece)
        cancelled.set()

    with pytest.raises(Unavailable, match="cancelled"):
        Pool(threads=4, cancelled=cancelled.is_set).ordered(works([1000] * 100), take)
    assert len(taken) == 1
    assert_no_worker_is_left()


def test_progress_is_right_after_a_failure_and_a_retry() -> None:
    told: list[Encoded] = []
    progress = Progress(told.append, total_rows=30)
    with progress.attempt() as count:
        count(10, 100)

    def fails() -> None:
        with progress.attempt() as count:
            count(10, 100)
            count(5, 50)
            raise ValueError("no space")

    with pytest.raises(ValueError, match="no space"):
        fails()
    assert progress.now == Encoded(rows=10, bytes_=100, total_rows=30)
    with progress.attempt() as count:
        count(20, 200)
    assert [found.rows for found in told] == [10, 20, 25, 10, 30]
    assert progress.now.fraction == 1.0


def assert_no_worker_is_left() -> None:
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("encoder")] == []
