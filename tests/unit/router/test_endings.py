"""However a routing ends, every waiter is released and nothing is left: no thread, descriptor, file or byte."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.errors import RoutingCancelled, SpillFull
from airflow_parallel_apply.router.engine import Budget, Demand, Engine, Phase, StreamOutput, Tagged, stream_engine
from tests.support.examples import examples
from tests.support.routed import Reader, Task, batches, expected, nothing_left, numbers_of, placed, run, until

AMPLE = 64 * 2**20
PLACES = [number % 4 for number in range(400)]


def engine_of(directory: Path, outputs: int = 4, *, memory: int = 1000, disk: int = AMPLE) -> Engine[StreamOutput]:
    budget = Budget(memory_bytes=memory, disk_bytes=disk)
    return stream_engine(routes=placed(outputs), budget=budget, directory=directory)


def endless(places: list[int], size: int = 40) -> Iterator[Tagged]:
    whole = batches(places, size)
    for turn in itertools.count():
        for item in whole:
            yield Tagged(item.batch, turn * 1000 + item.first_seqno, turn * 1000 + item.last_seqno)


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "spill"
    with nothing_left(directory):
        yield directory


def test_an_empty_source_ends_every_output(spill: Path) -> None:
    engine = engine_of(spill)
    engine.run(iter([]))
    assert [engine.output(number).read() for number in range(4)] == [None] * 4
    assert engine.phase is Phase.ENDED


def test_rows_that_wait_can_be_read_after_the_end(spill: Path) -> None:
    engine = engine_of(spill)
    first = Reader(engine.output(0))
    engine.run(iter(batches(PLACES, 40)))
    first.end()
    for number in range(1, 4):
        reader = Reader(engine.output(number))
        reader.end()
        assert numbers_of(reader.items) == expected(PLACES, number)


def test_a_consumer_that_drains_gets_no_rows_and_learns_the_end(spill: Path) -> None:
    engine = engine_of(spill)
    engine.output(1).drain()
    others = [Reader(engine.output(number)) for number in (0, 2, 3)]
    engine.run(iter(batches(PLACES, 40)))
    assert engine.output(1).read() is None
    for other in others:
        other.end()
    assert [stats.dropped_rows for stats in engine.stats()] == [0, 100, 0, 0]
    assert engine.output(1).demand is Demand.DRAINING


def test_a_consumer_that_drains_learns_an_error(spill: Path) -> None:
    engine = engine_of(spill)
    engine.output(1).drain()
    reader = Task(engine.output(1).read)
    engine.cancel(OSError("torn"))
    with pytest.raises(OSError, match="torn"):
        reader.end()


def test_closing_lets_go_of_what_waits_and_drops_what_comes(spill: Path) -> None:
    engine = engine_of(spill, memory=0)
    closing = engine.output(2)
    others = [Reader(engine.output(number)) for number in (0, 1, 3)]

    def source() -> Iterator[Tagged]:
        whole = batches(PLACES, 40)
        yield from whole[:5]
        closing.close()
        yield from whole[5:]

    engine.run(source())
    for other in others:
        other.end()
    stats = engine.stats()[2]
    assert (stats.rows, stats.dropped_rows, stats.waiting_disk_bytes) == (100, 100, 0)
    assert stats.high_disk_bytes > 0
    assert closing.read() is None


def test_reading_stops_early_when_nobody_needs_more(spill: Path) -> None:
    engine = engine_of(spill)
    running = run(engine, endless(PLACES))
    readers = [Reader(engine.output(number), limit=3) for number in range(4)]
    for reader in readers:
        reader.end()
    for number in range(4):
        (engine.output(number).drain if number % 2 else engine.output(number).close)()
    running.end()
    assert engine.phase is Phase.DRAINED
    assert engine.output(1).read() is None


def test_an_early_drain_while_all_are_blocked_leaves_no_spill_file(spill: Path) -> None:
    engine = engine_of(spill, memory=0)
    running = run(engine, endless(PLACES))
    until(lambda: engine.phase is Phase.STOPPED, "the engine stops")
    assert all(stats.waiting_disk_bytes for stats in engine.stats())
    for number in range(4):
        engine.output(number).drain()
    running.end()
    assert engine.phase is Phase.DRAINED


def test_a_cancelled_engine_does_not_begin(spill: Path) -> None:
    engine = engine_of(spill)
    waiting = [Reader(engine.output(number)) for number in range(4)]
    engine.cancel()
    source = endless(PLACES)
    engine.run(source)
    assert next(source, None) is None
    for reader in waiting:
        with pytest.raises(RoutingCancelled, match="let go of its rows"):
            reader.end()
    assert engine.phase is Phase.CANCELLED


def test_a_cancel_while_rows_flow_reaches_every_output(spill: Path) -> None:
    engine = engine_of(spill)
    running = run(engine, endless(PLACES))
    readers = [Reader(engine.output(number)) for number in range(4)]
    until(lambda: all(len(reader.items) > 5 for reader in readers), "rows flow")
    engine.cancel()
    running.end()
    for reader in readers:
        with pytest.raises(RoutingCancelled):
            reader.end()


def test_a_cancel_while_all_are_blocked_reaches_every_output(spill: Path) -> None:
    engine = engine_of(spill)
    running = run(engine, endless(PLACES))
    until(lambda: engine.phase is Phase.STOPPED, "the engine stops")
    engine.cancel(OSError("the run was cancelled"))
    running.end()
    for number in range(4):
        with pytest.raises(OSError, match="the run was cancelled"):
            engine.output(number).read()


def test_a_cancel_after_the_end_lets_go_of_what_waits(spill: Path) -> None:
    engine = engine_of(spill, memory=0)
    others = [Reader(engine.output(number)) for number in range(3)]
    engine.run(iter(batches(PLACES, 40)))
    for other in others:
        other.end()
    engine.cancel()
    with pytest.raises(RoutingCancelled):
        engine.output(3).read()


def test_only_the_first_cancel_counts(spill: Path) -> None:
    engine = engine_of(spill)
    engine.cancel(OSError("first"))
    engine.cancel(OSError("second"))
    with pytest.raises(OSError, match="first"):
        engine.output(0).read()


def test_a_source_that_fails_reaches_every_open_output_and_the_caller(spill: Path) -> None:
    def torn() -> Iterator[Tagged]:
        yield from batches(PLACES, 40)
        raise OSError("a torn segment")

    engine = engine_of(spill)
    engine.output(3).close()
    readers = [Reader(engine.output(number)) for number in range(3)]
    with pytest.raises(OSError, match="a torn segment"):
        engine.run(torn())
    for reader in readers:
        with pytest.raises(OSError, match="a torn segment"):
            reader.end()
    assert engine.phase is Phase.FAILED
    assert engine.output(3).read() is None


def test_routes_that_fail_reach_every_output(spill: Path) -> None:
    engine = engine_of(spill, outputs=2)
    with pytest.raises(ValueError, match="placed at 3"):
        engine.run(iter(batches(PLACES, 40)))
    with pytest.raises(ValueError, match="placed at 3"):
        engine.output(0).read()


def test_a_spent_disk_reaches_every_open_output_with_what_to_do(spill: Path) -> None:
    engine = engine_of(spill, memory=0, disk=20_000)
    reader = Reader(engine.output(0))
    with pytest.raises(SpillFull, match="Give the router more disk"):
        engine.run(endless(PLACES))
    with pytest.raises(SpillFull, match="Give the router more disk"):
        reader.end()


def test_the_source_is_closed_however_it_ends(spill: Path) -> None:
    closed = []

    def source() -> Iterator[Tagged]:
        try:
            yield from endless(PLACES)
        finally:
            closed.append(True)

    engine = engine_of(spill)
    for number in range(4):
        engine.output(number).close()
    begun = source()
    engine.run(begun)
    assert closed == [True]


def test_an_engine_runs_once(spill: Path) -> None:
    engine = engine_of(spill)
    engine.run(iter([]))
    with pytest.raises(ValueError, match="ended does not lead to running"):
        engine.run(iter([]))
    assert engine.phase is Phase.ENDED


def test_seqnos_never_go_back(spill: Path) -> None:
    first, second = batches([0, 0], 1)
    with pytest.raises(ValueError, match="seqnos 0 to 0 come behind 1 to 1"):
        engine_of(spill).run(iter([second, first]))


def test_a_reader_does_not_wait_longer_than_it_may(spill: Path) -> None:
    with pytest.raises(TimeoutError, match="output 0: nothing came within 0"):
        engine_of(spill).output(0).read(timeout=0)


class Consumer(Task):
    """Reads some items, and then does what its script says."""

    def __init__(self, output: StreamOutput, patience: int, script: str) -> None:
        self.items: list[Tagged] = []
        self._output = output
        self._patience = patience
        self.script = script
        super().__init__(self._consume)

    def _consume(self) -> None:
        while self.script == "whole" or len(self.items) < self._patience:
            item = self._output.read()
            if item is None:
                return
            self.items.append(item)
        if self.script == "drain":
            self._output.drain()
            assert self._output.read() is None
        elif self.script == "close":
            self._output.close()


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    outputs=st.integers(1, 64),
    memory=st.sampled_from([0, 2000, AMPLE]),
    ending=st.sampled_from(["whole", "source fails", "cancel", "disk"]),
    scripts=st.lists(st.sampled_from(["whole", "drain", "close", "leaves"]), min_size=64, max_size=64),
)
def test_chaos(tmp_path: Path, seed: int, outputs: int, memory: int, ending: str, scripts: list[str]) -> None:
    chance = random.Random(seed)
    places = [chance.randrange(outputs) for _ in range(chance.randrange(1500))]
    directory = tmp_path / "spill"
    budget = Budget(memory_bytes=memory, disk_bytes=chance.randrange(1, 50_000) if ending == "disk" else AMPLE)
    with nothing_left(directory):
        engine = stream_engine(routes=placed(outputs), budget=budget, directory=directory)
        stop_at = chance.randrange(40)

        def source() -> Iterator[Tagged]:
            for turn, item in enumerate(batches(places, chance.randrange(1, 100))):
                if turn == stop_at and ending == "source fails":
                    raise OSError("torn")
                if turn == stop_at and ending == "cancel":
                    cancelling.append(Task(engine.cancel))
                yield item

        cancelling: list[Task] = []
        consumers = [Consumer(engine.output(number), chance.randrange(6), scripts[number]) for number in range(outputs)]
        running = run(engine, source())
        # Who leaves without a word may be what all others, blocked, wait for.
        until(lambda: engine.phase is Phase.STOPPED or not running.is_alive(), "the engine stops or ends")
        while running.is_alive():
            for consumer in consumers:
                if not consumer.is_alive():
                    engine.output(consumers.index(consumer)).close()
            running.join(0.001)
        for task in (*consumers, *cancelling):
            task.wait()
        for number, consumer in enumerate(consumers):
            found = numbers_of(consumer.items)
            assert found == expected(places, number)[: len(found)]
            if consumer.error is not None:
                assert isinstance(consumer.error, OSError | RoutingCancelled | SpillFull)
            elif consumer.script == "whole" and engine.phase is Phase.ENDED:
                assert len(found) == places.count(number)
        assert not engine.phase.is_live
        engine.cancel()
    assert budget.memory.used_bytes == budget.disk.used_bytes == budget.cache.held_bytes == 0
