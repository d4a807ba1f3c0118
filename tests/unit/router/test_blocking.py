"""Blocked outputs: they hold up nobody while another can take rows, and everybody once none can."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_parallel_apply.router.engine import Budget, Engine, Phase, StreamOutput, Tagged, stream_engine
from airflow_parallel_apply.router.memory_pool import choose_memory_pool
from tests.support.alternating import BATCH_ROWS, CHANNELS, read_in_turns, source
from tests.support.routed import Reader, batches, expected, nothing_left, numbers_of, placed, run, until

AMPLE = 64 * 2**20
PLACES = [number % 4 for number in range(4000)]


def engine_of(directory: Path, *, memory: int, disk: int = AMPLE, clock: Iterator[float] | None = None) -> Engine:
    budget = Budget(memory_bytes=memory, disk_bytes=disk)
    if clock is None:
        return stream_engine(routes=placed(4), budget=budget, directory=directory)
    return Engine(StreamOutput, routes=placed(4), budget=budget, directory=directory, clock=lambda: next(clock))


def test_one_blocked_output_never_stops_the_engine(tmp_path: Path) -> None:
    with nothing_left(tmp_path), engine_of(tmp_path, memory=2000) as engine:
        running = run(engine, iter(batches(PLACES, 40)))
        others = [Reader(engine.output(number)) for number in range(3)]
        for number, other in enumerate(others):
            other.end()
            assert numbers_of(other.items) == expected(PLACES, number)
        running.end()
        # The engine may have stood still for an output that was slow for a moment, never for the one that is blocked.
        stats = engine.stats()[3]
        assert stats.rows == 1000
        assert stats.blocked_seconds > 0
        assert stats.waiting_disk_bytes > 20_000
        last = Reader(engine.output(3))
        last.end()
        assert numbers_of(last.items) == expected(PLACES, 3)


def test_a_blocked_output_costs_the_others_no_wait(tmp_path: Path) -> None:
    """Counted, not timed: the source is asked for a batch only when the others have taken all of the one before."""
    engine = engine_of(tmp_path, memory=8000)
    read: list[list[Tagged]] = [[], [], []]

    def in_step() -> Iterator[Tagged]:
        for item in batches(PLACES, 40):
            yield item
            for number in range(3):
                found = engine.output(number).read(timeout=0)
                assert found is not None
                read[number].append(found)

    with engine:
        engine.run(in_step())
        assert engine.stop_count == 0
        assert [numbers_of(items) for items in read] == [expected(PLACES, number) for number in range(3)]
        assert [stats.high_disk_bytes > 0 for stats in engine.stats()] == [False, False, False, True]


def test_an_engine_that_stands_still_goes_on_when_one_has_room(tmp_path: Path) -> None:
    with nothing_left(tmp_path), engine_of(tmp_path, memory=4000) as engine:
        routed = itertools.count()
        yielded = 0

        def counted() -> Iterator[Tagged]:
            nonlocal yielded
            for item in batches(PLACES, 40):
                yielded = next(routed) + 1
                yield item

        running = run(engine, counted())
        until(lambda: engine.phase is Phase.STOPPED, "the engine stops")
        before, stops = yielded, engine.stop_count
        reader = Reader(engine.output(1))
        reader.end()
        running.end()
        assert numbers_of(reader.items) == expected(PLACES, 1)
        assert yielded == 100 > before
        assert stops == 1
        others = [Reader(engine.output(number)) for number in (0, 2, 3)]
        for other in others:
            other.end()


def test_a_reader_that_blocks_is_woken_by_rows_and_by_the_end(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, memory=AMPLE)
    reader = Reader(engine.output(0))
    first, *rest = batches(PLACES, 2000)

    def slow() -> Iterator[Tagged]:
        yield first
        until(lambda: len(reader.items) == 1, "the reader has the first piece")
        yield from rest

    engine.run(slow())
    reader.end()
    assert numbers_of(reader.items) == expected(PLACES, 0)
    engine.cancel()


def test_blocked_time_is_measured_by_the_clock(tmp_path: Path) -> None:
    with engine_of(tmp_path, memory=0, clock=itertools.count(0.0, 1.0)) as engine:  # type: ignore[arg-type]
        engine.output(0).close()
        running = run(engine, iter(batches(PLACES, 40)))
        until(lambda: engine.phase is Phase.STOPPED, "the engine stops")
        readers = [Reader(engine.output(number)) for number in (1, 2)]
        for reader in readers:
            reader.end()
        running.end()
        seconds = [stats.blocked_seconds for stats in engine.stats()]
        assert seconds[0] == 0
        assert seconds[3] >= max(seconds[1:3])


def test_without_a_disk_the_engine_stops_for_one_and_two_channels_in_turns_deadlock(tmp_path: Path) -> None:
    """The deadlock of a router that does not buffer. This thread alone could change anything, and it waits for rows."""
    with nothing_left(tmp_path):
        budget = Budget(memory_bytes=2**20, disk_bytes=0)
        with stream_engine(routes=placed(CHANNELS), budget=budget, directory=tmp_path) as engine:
            running = run(engine, source(100))
            until(lambda: engine.phase is Phase.STOPPED, "the engine stops")
            with pytest.raises(TimeoutError):
                read_in_turns(engine.output(0), engine.output(1), timeout=0.2)
            # On a busy machine the reader may give up before the engine has come to where it stands for good.
            until(lambda: engine.phase is Phase.STOPPED, "the engine stands still")
            engine.cancel()
            running.end()


@pytest.mark.parametrize(("megabytes", "memory"), [(160, 64), pytest.param(2048, 64, marks=pytest.mark.long)])
def test_with_a_disk_the_same_consumer_completes_inside_its_memory(tmp_path: Path, megabytes: int, memory: int) -> None:
    environment = dict(os.environ)
    choose_memory_pool(environment)
    found = json.loads(
        subprocess.run(
            [sys.executable, "-m", "tests.support.alternating", str(megabytes), str(memory), str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
            timeout=500,
            env=environment,
        ).stdout
    )
    assert found["rows"] == megabytes * 2**20 // (BATCH_ROWS * 128) * BATCH_ROWS
    assert found["spilled_bytes"] > megabytes * 2**20 // 4
    assert found["grown_bytes"] < memory * 2**20
    assert list(tmp_path.iterdir()) == []
