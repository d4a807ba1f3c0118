"""The budget of a process: what is free is anybody's, what is used up becomes even, what was read goes first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_parallel_apply.router.engine import Budget, Tagged, stream_engine
from airflow_parallel_apply.router.engine.budget import Cache, SharedBytes
from tests.support.routed import Reader, Task, batch, placed, run, until


@given(limit=st.integers(0, 10_000), takes=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 500)), max_size=200))
def test_no_more_is_given_than_there_is(limit: int, takes: list[tuple[int, int]]) -> None:
    shared = SharedBytes(limit)
    held = [0] * 10
    for output, size in takes:
        if shared.take(size, held_bytes=held[output]):
            held[output] += size
    assert shared.used_bytes == sum(held) <= limit


@pytest.mark.parametrize("outputs", [1, 2, 8, 64])
def test_outputs_that_all_want_disk_get_about_the_same(outputs: int) -> None:
    shared = SharedBytes(1_000_000)
    held = [0] * outputs
    while True:
        wanting = [output for output in range(outputs) if shared.take(100, held_bytes=held[output])]
        for output in wanting:
            held[output] += 100
        if not wanting:
            break
    assert max(held) - min(held) <= 100
    assert sum(held) > 8 / 9 * 1_000_000 - 100 * outputs


def test_one_that_comes_late_still_finds_disk() -> None:
    shared = SharedBytes(1_000_000)
    early = 0
    while shared.take(100, held_bytes=early):
        early += 100
    assert shared.take(50_000, held_bytes=0)


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="a budget of -1 bytes"):
        Budget(memory_bytes=0, disk_bytes=-1)


class Owner:
    def __init__(self) -> None:
        self.evicted: list[int] = []

    def evict(self, number: int) -> None:
        self.evicted.append(number)


def test_what_was_read_longest_ago_is_evicted_first() -> None:
    cache, owner = Cache(), Owner()
    for number in (1, 2, 3, 4, 1):
        cache.touch(owner, number, 10)
    cache.forget(owner, 3)
    assert cache.held_bytes == 30
    cache.shrink(15)
    assert owner.evicted == [2, 4]
    cache.shrink(0)
    assert owner.evicted == [2, 4, 1]
    assert cache.held_bytes == 0


def test_one_that_hoards_gives_way_to_those_who_hold_little(tmp_path: Path) -> None:
    """One output fills the memory while the others are quick. When a second one becomes slow, it gets its part."""
    budget = Budget(memory_bytes=120_000, disk_bytes=2**30)
    engine = stream_engine(routes=placed(3), budget=budget, directory=tmp_path)
    rows = batch([0, 1, 2] * 20)
    hoarding: list[int] = []

    def source() -> Iterator[Tagged]:
        for turn in itertools.count():
            yield Tagged(rows, turn, turn)
            engine.output(2).read()
            if turn < 200:
                engine.output(1).read()
            elif turn == 200:
                hoarding.append(engine.stats()[0].waiting_memory_bytes)
            elif turn > 400:
                return

    with engine:
        Task(lambda: engine.run(source())).end()
        first, second = (engine.stats()[number].waiting_memory_bytes for number in (0, 1))
        assert hoarding[0] > 50_000
        assert second > 15_000
        assert first < hoarding[0] - 15_000


def test_two_engines_share_one_budget(tmp_path: Path) -> None:
    budget = Budget(memory_bytes=80_000, disk_bytes=2**30)
    engines = [stream_engine(routes=placed(2), budget=budget, directory=tmp_path) for _ in range(2)]
    rows = batch([0, 1] * 20)
    running = [run(engine, (Tagged(rows, turn, turn) for turn in range(500))) for engine in engines]
    until(lambda: all(engine.phase == "stopped" for engine in engines), "both stop")
    # Each sees what the other has taken at its next look, which is due after a 64th of the budget, and a batch.
    assert budget.memory.used_bytes <= 40_000 + 2 * (40_000 // 64 + rows.nbytes)
    for engine, task in zip(engines, running, strict=True):
        readers = [Reader(engine.output(number)) for number in range(2)]
        for reader in readers:
            reader.end()
        task.end()
    assert budget.memory.used_bytes == 0
    assert budget.memory.even_bytes == 40_000
