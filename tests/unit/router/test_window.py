"""Windows: ranges are read again and again; what was read goes first; what was trimmed is not answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.errors import RoutingCancelled, SpillFull
from airflow_parallel_apply.router.engine import Budget, Engine, Phase, Reached, Tagged, WindowOutput, window_engine
from airflow_parallel_apply.router.engine.items import Piece
from tests.support.examples import examples
from tests.support.routed import Task, batches, nothing_left, numbers_of, placed, until

AMPLE = 64 * 2**20
PLACES = [0] * 100


def engine_of(directory: Path, *, memory: int = AMPLE, disk: int = AMPLE, outputs: int = 1) -> Engine[WindowOutput]:
    budget = Budget(memory_bytes=memory, disk_bytes=disk)
    return window_engine(routes=placed(outputs), budget=budget, directory=directory, after_seqno=-1)


def attended(engine: Engine[WindowOutput]) -> Engine[WindowOutput]:
    """The last output has a reader that waits, so that the engine does not stop for the others."""
    last = engine.output(len(engine.stats()) - 1)
    Task(lambda: list(last.reading(10**6, 10**6 + 1, timeout=60) or ()))
    until(lambda: not last.is_blocked(0) and last._waiting_readers > 0, "the reader waits")
    return engine


def marked(items: list[Tagged]) -> Iterator[Tagged | Reached]:
    for item in items:
        yield item
        yield Reached(item.last_seqno)


def filled(directory: Path, *, memory: int = AMPLE, disk: int = AMPLE) -> Engine[WindowOutput]:
    """Seqnos 0 to 99, ten to an item, in the first of two outputs."""
    engine = attended(engine_of(directory, memory=memory, disk=disk, outputs=2))
    engine.run(marked(batches(PLACES, 10)))
    return engine


def read(output: WindowOutput, after_seqno: int, last_seqno: int) -> list[int] | None:
    found = output.reading(after_seqno, last_seqno)
    return None if found is None else numbers_of(list(found))


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "spill"
    with nothing_left(directory):
        yield directory


def test_whoever_asks_again_gets_the_same_items(spill: Path) -> None:
    with filled(spill) as engine:
        output = engine.output(0)
        assert read(output, 19, 49) == read(output, 19, 49) == list(range(20, 50))
        assert read(output, -1, 99) == list(range(100))


def test_items_that_a_range_divides_are_given_whole(spill: Path) -> None:
    with filled(spill) as engine:
        assert read(engine.output(0), 24, 31) == list(range(20, 40))


def test_a_range_without_rows_is_held_too(spill: Path) -> None:
    with engine_of(spill, outputs=2) as engine:
        engine.run(marked(batches(PLACES, 10)))
        assert read(engine.output(1), -1, 99) == []


@pytest.mark.parametrize(("after_seqno", "last_seqno"), [(-2, 10), (90, 100), (200, 300)])
def test_a_range_that_is_not_held_as_a_whole_is_not_answered(spill: Path, after_seqno: int, last_seqno: int) -> None:
    with filled(spill) as engine:
        assert read(engine.output(0), after_seqno, last_seqno) is None


def test_trimmed_items_are_gone_from_memory_and_disk(spill: Path) -> None:
    with filled(spill, memory=600) as engine:
        output = engine.output(0)
        assert output.stats().waiting_disk_bytes > 0
        output.trim(69)
        assert output.start_seqno == 69
        assert read(output, 59, 79) is None
        assert read(output, 69, 99) == list(range(70, 100))
        output.trim(99)
        assert (output.stats().waiting_memory_bytes, output.stats().waiting_disk_bytes) == (0, 0)


def test_items_that_a_trim_divides_stay_until_their_last_seqno_is_passed(spill: Path) -> None:
    with filled(spill) as engine:
        output = engine.output(0)
        output.trim(15)
        assert read(output, 15, 29) == list(range(10, 30))
        assert read(output, 14, 29) is None


def test_what_was_read_goes_first_and_is_then_not_answered(spill: Path) -> None:
    budget = Budget(memory_bytes=3000, disk_bytes=AMPLE)
    engine = attended(window_engine(routes=placed(2), budget=budget, directory=spill, after_seqno=-1))
    items = batches([0] * 200, 10)
    with engine:
        output = engine.output(0)

        def source() -> Iterator[Tagged | Reached]:
            yield from marked(items[:4])
            assert read(output, -1, 39) == list(range(40))
            assert budget.cache.held_bytes > 0
            yield from marked(items[4:])

        running = Task(lambda: engine.run(source()))
        until(lambda: output.reached_seqno >= 70, "what waits has taken the memory")
        assert read(output, -1, 39) is None
        # Nothing that was never read is lost.
        reached = output.reached_seqno
        assert read(output, 39, reached) == list(range(40, reached + 1))
        engine.cancel()
        running.wait()


def test_rows_read_from_the_disk_stay_there_for_the_next_reader(spill: Path) -> None:
    with filled(spill, memory=600) as engine:
        output = engine.output(0)
        assert read(output, -1, 39) == read(output, -1, 39) == list(range(40))


def test_disk_that_was_read_is_given_up_before_the_disk_is_called_spent(spill: Path) -> None:
    engine = attended(engine_of(spill, memory=0, disk=20_000, outputs=2))
    output = engine.output(0)
    items = batches([0] * 1000, 10)

    def source() -> Iterator[Tagged | Reached]:
        for item in marked(items):
            yield item
            if isinstance(item, Reached):
                assert read(output, item.seqno - 10, item.seqno) is not None

    with engine:
        engine.run(source())
        assert engine.phase is Phase.ENDED
        assert output.stats().high_disk_bytes <= 20_000


def test_a_disk_full_of_rows_that_nobody_read_is_spent(spill: Path) -> None:
    engine = engine_of(spill, memory=0, disk=20_000, outputs=2)
    taken = Task(lambda: list(engine.output(1).reading(-1, 1000, timeout=60) or ()))
    with pytest.raises(SpillFull):
        engine.run(marked(batches([0, 1] * 500, 10)))
    with pytest.raises(SpillFull):
        taken.end()
    assert engine.output(0).reading(-1, 0) is None


def test_a_reader_that_waits_gets_rows_as_they_come(spill: Path) -> None:
    engine = engine_of(spill)
    output = engine.output(0)
    assert output.reading(-1, 99) is None
    found = output.reading(-1, 59, timeout=60)
    assert found is not None
    reader = Task(lambda: numbers_of(list(found)))
    with engine:
        engine.run(marked(batches(PLACES, 10)))
        assert reader.end() == list(range(60))


def test_a_reader_that_waits_makes_a_blocked_engine_read_on(spill: Path) -> None:
    with engine_of(spill, memory=300) as engine:
        output = engine.output(0)
        running = Task(lambda: engine.run(marked(batches(PLACES, 10))))
        until(lambda: engine.phase is Phase.STOPPED, "the engine stops")
        assert output.reached_seqno < 50
        beyond = output.reading(59, 99, timeout=60)
        assert beyond is not None
        assert numbers_of(list(beyond)) == list(range(60, 100))
        running.end()
        assert read(output, -1, 99) == list(range(100))


def test_rows_that_come_and_go_before_a_reader_wakes_are_nothing_to_it(spill: Path) -> None:
    with engine_of(spill) as engine:
        output = engine.output(0)
        found = output.reading(59, 99, timeout=60)
        assert found is not None
        reader = Task(lambda: numbers_of(list(found)))
        until(lambda: output._waiting_readers > 0, "the reader waits")
        first, *rest = batches(PLACES, 10)
        with output._condition:
            output.put(Piece.of(first.batch, first))
            output.trim(first.last_seqno)
        for item in rest:
            output.put(Piece.of(item.batch, item))
        output.reach(99)
        assert reader.end() == list(range(60, 100))


def test_a_reader_learns_that_what_it_waits_for_will_not_come(spill: Path) -> None:
    engine = engine_of(spill)
    found = engine.output(0).reading(-1, 500, timeout=60)
    assert found is not None
    reader = Task(lambda: list(found))
    engine.run(marked(batches(PLACES, 10)))
    with pytest.raises(RoutingCancelled, match="ended before seqno 500"):
        reader.end()
    engine.cancel()


@pytest.mark.parametrize(
    "let_go", [lambda engine: engine.output(0).trim(99), lambda engine: engine.output(0).close()], ids=["trim", "close"]
)
def test_a_reading_ends_with_an_error_when_its_rows_are_let_go(
    spill: Path, let_go: Callable[[Engine[WindowOutput]], None]
) -> None:
    with filled(spill) as engine:
        found = engine.output(0).reading(-1, 99)
        assert found is not None
        next(found)
        let_go(engine)
        with pytest.raises(RoutingCancelled, match="let go of while they were read"):
            next(found)


def test_a_cancel_reaches_every_reading(spill: Path) -> None:
    engine = engine_of(spill, outputs=3)
    readings = [engine.output(number).reading(-1, 10, timeout=60) for number in range(3)]
    readers = [Task(lambda found=found: list(found or ())) for found in readings]
    engine.cancel()
    for reader in readers:
        with pytest.raises(RoutingCancelled):
            reader.end()


def test_what_a_reading_has_ahead_is_not_lost_to_the_cache(spill: Path) -> None:
    """A second reader of rows that were read once: they are evicted before it comes to them, to the disk."""
    budget = Budget(memory_bytes=3000, disk_bytes=AMPLE)
    engine = window_engine(routes=placed(2), budget=budget, directory=spill, after_seqno=-1)
    items = batches([0] * 40 + [1] * 400, 10)
    again: list[Iterator[Tagged]] = []

    def source() -> Iterator[Tagged | Reached]:
        yield from marked(items[:4])
        output = engine.output(0)
        assert read(output, -1, 39) == list(range(40))
        second = output.reading(-1, 39)
        assert second is not None
        assert numbers_of([next(second)]) == list(range(10))
        again.append(second)
        yield from marked(items[4:])

    with engine:
        running = Task(lambda: engine.run(source()))
        until(lambda: engine.phase is Phase.STOPPED or not running.is_alive(), "the other output fills the memory")
        assert numbers_of(list(again[0])) == list(range(10, 40))
        engine.cancel()
        running.wait()


@pytest.mark.parametrize("begins", [False, True])
def test_a_reading_that_is_given_up_holds_nothing(spill: Path, begins: bool) -> None:
    with filled(spill) as engine:
        output = engine.output(0)
        assert read(output, -1, 99) is not None
        given_up = output.reading(-1, 99)
        assert given_up is not None
        if begins:
            next(given_up)
        given_up.close()
        del given_up
        output.evict(9)
        assert read(output, -1, 99) is None
        assert output.stats().high_disk_bytes == 0


def test_a_reader_that_waits_is_not_given_what_lies_before_its_range(spill: Path) -> None:
    with engine_of(spill) as engine:
        ahead = engine.output(0).reading(69, 79, timeout=60)
        assert ahead is not None
        reader = Task(lambda: numbers_of(list(ahead)))
        engine.run(marked(batches(PLACES, 10)))
        assert reader.end() == list(range(70, 80))


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    memory=st.sampled_from([0, 900, 6000, AMPLE]),
    steps=st.lists(
        st.tuples(st.sampled_from(["read", "trim", "feed"]), st.integers(0, 220), st.integers(0, 80)), max_size=30
    ),
)
def test_whatever_is_answered_is_right(tmp_path: Path, memory: int, steps: list[tuple[str, int, int]]) -> None:
    """Reading, trimming and feeding in any order: a range is answered whole and in order, or not at all."""
    directory = tmp_path / "spill"
    items = iter(batches([0] * 200, 7))
    budget = Budget(memory_bytes=memory, disk_bytes=AMPLE)
    with (
        nothing_left(directory),
        window_engine(routes=placed(2), budget=budget, directory=directory, after_seqno=-1) as engine,
    ):
        output = engine.output(0)

        def source() -> Iterator[Tagged | Reached]:
            for step, seqno, length in steps:
                if step == "feed":
                    yield from marked(list(islice(items, length // 10)))
                elif step == "trim":
                    output.trim(seqno)
                else:
                    found = read(output, seqno - 1, seqno + length)
                    if found is not None:
                        assert found == sorted(found)
                        assert set(range(seqno, min(seqno + length + 1, 200))) <= set(found)
                    elif memory == AMPLE:
                        assert seqno - 1 < output.start_seqno or seqno + length > output.reached_seqno
                engine._check()

        attended(engine).run(source())
    assert budget.memory.used_bytes == budget.disk.used_bytes == budget.cache.held_bytes == 0
