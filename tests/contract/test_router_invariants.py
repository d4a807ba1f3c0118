"""Invariants of an engine, whatever its outputs are: streams, or windows that are read as their rows come.

Sources, sizes of batches, budgets and numbers of outputs are random; small budgets spill nearly everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.router.engine import (
    Budget,
    Engine,
    HashRoutes,
    MirrorRoutes,
    Phase,
    Reached,
    Routes,
    Tagged,
    stream_engine,
    window_engine,
)
from airflow_parallel_apply.router.engine.output import Output
from tests.support.examples import examples
from tests.support.routed import (
    SCHEMA,
    Task,
    batches,
    expected,
    nothing_left,
    numbers_of,
    placed,
    until,
)
from tests.support.variants import gated

Make = Callable[[Routes, Budget, Path], Engine]
Read = Callable[[Output, int], Iterator[Tagged]]

AMPLE = 64 * 2**20


def _streams(routes: Routes, budget: Budget, directory: Path) -> Engine:
    return stream_engine(routes=routes, budget=budget, directory=directory)


def _windows(routes: Routes, budget: Budget, directory: Path) -> Engine:
    return window_engine(routes=routes, budget=budget, directory=directory, after_seqno=-1)


def _read_stream(output: Output, _: int) -> Iterator[Tagged]:
    return iter(output)  # type: ignore[call-overload,no-any-return]


def _read_window(output: Output, last_seqno: int) -> Iterator[Tagged]:
    found = output.reading(-1, last_seqno, timeout=60)  # type: ignore[attr-defined]
    assert found is not None
    return found  # type: ignore[no-any-return]


KINDS = pytest.mark.parametrize(
    ("make", "read"), [(_streams, _read_stream), (_windows, _read_window)], ids=["streams", "windows"]
)

PLACES = st.integers(1, 64).flatmap(
    lambda outputs: st.tuples(st.just(outputs), st.lists(st.integers(0, outputs - 1), max_size=400))
)


def source(places: list[int], size: int) -> Iterator[Tagged | Reached]:
    for item in batches(places, size):
        yield item
        yield Reached(item.last_seqno)
    yield Reached(len(places))


def reading(engine: Engine, read: Read, last_seqno: int, *, but: int = -1) -> list[Task]:
    """A thread for each output that reads it whole."""
    numbers = [number for number in range(len(engine.stats())) if number != but]
    return [Task(partial(_read_whole, engine.output(number), read, last_seqno)) for number in numbers]


def _read_whole(output: Output, read: Read, last_seqno: int) -> list[Tagged]:
    return list(read(output, last_seqno))


@KINDS
@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=PLACES, size=st.integers(1, 100), memory=st.sampled_from([0, 500, 20_000, AMPLE]))
def test_every_row_comes_once_and_in_order(
    make: Make, read: Read, tmp_path: Path, places: tuple[int, list[int]], size: int, memory: int
) -> None:
    outputs, rows = places
    directory = tmp_path / "spill"
    with nothing_left(directory):
        budget = Budget(memory_bytes=memory, disk_bytes=AMPLE)
        with make(placed(outputs), budget, directory) as engine:
            readers = reading(engine, read, len(rows))
            engine.run(source(rows, size))
            for number, reader in enumerate(readers):
                assert numbers_of(reader.end()) == expected(rows, number)
            assert engine.phase is Phase.ENDED
            assert sum(stats.rows for stats in engine.stats()) == len(rows)
        assert budget.memory.used_bytes == budget.disk.used_bytes == 0


@gated
@KINDS
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=PLACES, size=st.integers(1, 100), slow=st.integers(0, 63))
def test_what_one_consumer_leaves_is_spilled_and_comes_in_order_afterwards(
    make: Make, read: Read, tmp_path: Path, places: tuple[int, list[int]], size: int, slow: int
) -> None:
    outputs, rows = places
    slow %= outputs
    directory = tmp_path / "spill"
    budget = Budget(memory_bytes=0, disk_bytes=AMPLE)
    with nothing_left(directory), make(placed(outputs), budget, directory) as engine:
        running = Task(lambda: engine.run(source(rows, size)))
        for other in reading(engine, read, len(rows), but=slow):
            other.end()
        late = list(read(engine.output(slow), len(rows)))
        running.end()
        assert numbers_of(late) == expected(rows, slow)


@gated
@KINDS
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(outputs=st.integers(1, 64), memory=st.sampled_from([0, 10_000, 200_000]), size=st.integers(1, 200))
def test_nobody_reads_and_the_source_is_not_read_on(
    make: Make, read: Read, tmp_path: Path, outputs: int, memory: int, size: int
) -> None:
    directory = tmp_path / "spill"
    one = batches(list(range(outputs)) * size, outputs * size)[0]
    piece_bytes = sum(piece.nbytes for _, piece in placed(outputs).split(one.batch))
    routed = 0

    def endless() -> Iterator[Tagged]:
        nonlocal routed
        while True:
            routed += 1
            yield one

    with nothing_left(directory):
        budget = Budget(memory_bytes=memory, disk_bytes=AMPLE)
        with make(placed(outputs), budget, directory) as engine:
            running = Task(lambda: engine.run(endless()))
            until(lambda: engine.phase is Phase.STOPPED, "the engine stops")
            # Memory is within the budget; on disk is what did not fit any more between two looks.
            stats = engine.stats()
            assert sum(one.waiting_memory_bytes for one in stats) <= memory
            assert sum(one.waiting_disk_bytes for one in stats) <= 2 * max(piece_bytes, memory // 64)
            assert budget.memory.used_bytes <= memory
            seen = routed
            engine.cancel()
            running.end()
            assert routed == seen


@KINDS
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=st.lists(st.integers(0, 20), max_size=300), outputs=st.integers(2, 64), size=st.integers(1, 80))
def test_equal_keys_meet_in_one_output(
    make: Make, read: Read, tmp_path: Path, keys: list[int], outputs: int, size: int
) -> None:
    with make(HashRoutes(SCHEMA, ["output"], outputs), Budget(memory_bytes=1000, disk_bytes=AMPLE), tmp_path) as engine:
        readers = reading(engine, read, len(keys))
        engine.run(source(keys, size))
        of_key: dict[int, set[int]] = {}
        for number, reader in enumerate(readers):
            found = numbers_of(reader.end())
            assert found == sorted(found)
            for row in found:
                of_key.setdefault(keys[row], set()).add(number)
        assert all(len(numbers) == 1 for numbers in of_key.values())


@KINDS
@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_a_mirror_gives_two_consumers_one_history(make: Make, read: Read, tmp_path: Path, outputs: int) -> None:
    rows = [0] * 500
    with make(MirrorRoutes(outputs), Budget(memory_bytes=1000, disk_bytes=AMPLE), tmp_path) as engine:
        readers = reading(engine, read, len(rows))
        engine.run(source(rows, 7))
        for reader in readers:
            assert numbers_of(reader.end()) == list(range(500))
