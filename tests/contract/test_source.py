"""What every source promises, and what `pipeline/capture` makes of it: law 7 at each line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from airflow_parallel_apply.pipeline.capture import first_run, loop
from airflow_parallel_apply.pipeline.capture.capture import Capture
from airflow_parallel_apply.pipeline.config import Start
from airflow_parallel_apply.pipeline.errors import ConfigurationError, SourceError, Unavailable
from airflow_parallel_apply.pipeline.log.writing import open_writer
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.source.protocol import Snapshot, SourceChanged
from tests.contract.sources import SOURCES, Transactions, World
from tests.support.written_log import Change

EVERYTHING = 2**31 - 2


class Died(BaseException):
    """Stands for the end of the process."""


@pytest.fixture(params=sorted(SOURCES))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = SOURCES[request.param](request)
    yield made
    made.close()


@pytest.fixture
def begun(world: World) -> World:
    """A pipeline whose first run is over; nothing was committed yet."""
    world.capture().prepare()
    return world


def never() -> bool:
    return False


def catch_up(world: World, *, max_changes: int = EVERYTHING, step_changes: int | None = None) -> list[Any]:
    """All that is committed now, each read by a process of its own."""
    until, steps = world.capture().source.offset(), []
    while not steps or not steps[-1].done:
        capturing = world.capture()
        steps += capturing.capture(until, max_changes=max_changes, step_changes=step_changes, cancelled=never)
    return steps


def require_complete(world: World) -> None:
    catch_up(world)
    assert world.logged() == world.committed
    assert not world.capture().has_changes(world.state().place)


class Bomb:
    """Ends the process at its `fuse`th call."""

    def __init__(self, fuse: int) -> None:
        self.fuse = fuse
        self.places: list[str] = []

    def pass_by(self, place: str) -> None:
        self.places.append(place)
        if len(self.places) == self.fuse:
            raise Died(place)


class Mined:
    """An object whose methods of some names pass by a bomb, before and behind their call."""

    def __init__(self, inner: Any, bomb: Bomb, *names: str) -> None:
        self._inner, self._bomb, self._names = inner, bomb, names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._names:
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self._bomb.pass_by(f"before {name}")
            result = found(*arguments, **named)
            self._bomb.pass_by(f"behind {name}")
            return result

        return call


def mine(capturing: Capture, bomb: Bomb, patch: pytest.MonkeyPatch) -> Capture:
    def opened(url: str, **options: Any) -> Any:
        return Mined(open_writer(url, **options), bomb, "see", "register", "append", "commit")

    patch.setattr(loop, "open_writer", opened)
    source: Any = Mined(capturing.source, bomb, "release", "reach", "look")
    return Capture(source, capturing._config)


def test_a_crash_at_any_line_of_a_read_repeats_nothing_and_loses_nothing(begun: World) -> None:
    """The source forgets what it was told that the log has: so it was told the truth at each of them."""
    places: set[str] = set()
    for fuse in count(1):
        begun.commit_many(3, first=10 * fuse)
        bomb = Bomb(fuse)
        with pytest.MonkeyPatch.context() as patch:
            capturing = mine(begun.capture(), bomb, patch)
            steps = capturing.capture(
                capturing.source.offset(), max_changes=EVERYTHING, step_changes=1, cancelled=never
            )
            try:
                list(steps)
            except Died as died:
                places.add(str(died))
            else:
                break
        assert (begun.released() or 0) <= begun.state().captured_offset
        assert begun.logged() == begun.committed[: len(begun.logged())]
    assert {"behind append", "before commit", "behind commit", "before release", "behind release"} <= places
    require_complete(begun)


def test_a_read_that_is_closed_in_the_middle_keeps_its_steps_and_loses_nothing(begun: World) -> None:
    begun.commit_many(9, first=1)
    capturing = begun.capture()
    with closing(
        capturing.capture(capturing.source.offset(), max_changes=EVERYTHING, step_changes=1, cancelled=never)
    ) as steps:
        reached = [next(steps).last_seqno, next(steps).last_seqno]
    assert begun.state().last_seqno == reached[-1]
    assert begun.logged() == begun.committed[: reached[-1] + 1]
    begun.commit_many(1, first=100)
    require_complete(begun)


def test_a_read_that_is_cancelled_moves_nothing(begun: World) -> None:
    begun.commit_many(3, first=1)
    before, released = begun.state(), begun.released()
    capturing = begun.capture()
    (step,) = capturing.capture(capturing.source.offset(), max_changes=EVERYTHING, cancelled=lambda: True)
    assert (step.done, step.row_count, step.last_seqno) == (False, 0, NO_SEQNO)
    assert (begun.state(), begun.released()) == (before, released)
    require_complete(begun)


def test_a_refused_writer_never_releases_the_source(begun: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begun.commit_many(3, first=1)
    capturing = begun.capture()
    until, released = capturing.source.offset(), []

    def overtaken(url: str) -> Any:
        writer = open_writer(url)
        commit = writer.commit

        def commit_late(*arguments: Any) -> Any:
            other = open_writer(url)
            other.commit(other.state().captured_offset + 1)
            return commit(*arguments)

        monkeypatch.setattr(writer, "commit", commit_late)
        released.append(begun.released())
        return writer

    with monkeypatch.context() as patch:
        patch.setattr(loop, "open_writer", overtaken)
        with pytest.raises(Unavailable, match="another capture went on"):
            list(capturing.capture(until, max_changes=EVERYTHING, cancelled=never))
    assert [begun.released()] == released
    require_complete(begun)


def test_a_capture_that_was_overtaken_before_it_looked_is_tried_again(
    begun: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun.commit_many(3, first=1)
    slow = begun.capture()
    until = slow.source.offset()

    def opened_then_overtaken(url: str) -> Any:
        writer = open_writer(url)
        monkeypatch.undo()
        catch_up(begun)
        begun.commit_many(1, first=50)
        catch_up(begun)
        return writer

    monkeypatch.setattr(loop, "open_writer", opened_then_overtaken)
    with pytest.raises(Unavailable, match="another capture went on"):
        list(slow.capture(until, max_changes=EVERYTHING, cancelled=never))
    require_complete(begun)


@pytest.mark.parametrize(("max_changes", "step_changes"), [(EVERYTHING, None), (EVERYTHING, 2), (1, 1), (4, 100)])
def test_transactions_come_whole_and_once_whatever_is_asked_for(
    begun: World, max_changes: int, step_changes: int | None
) -> None:
    begun.commit_many(2, first=1)
    begun.commit(*(Change("I", key, "large") for key in range(100, 120)))
    begun.commit(Change("U", 1, "b"), Change("D", 2), Change("I", 2, None))
    begun.commit(Change("T"))
    begun.commit_many(2, first=1)
    steps = catch_up(begun, max_changes=max_changes, step_changes=step_changes)
    assert begun.logged() == begun.committed
    assert [step.done for step in steps] == [False] * (len(steps) - 1) + [True]
    assert sum(step.row_count for step in steps) == sum(map(len, begun.committed))
    told = [step for step in steps if step.transaction_count]
    assert [step.first_seqno for step in told] == [0, *(step.last_seqno + 1 for step in told[:-1])]
    if max_changes == 1:
        assert len(told) > 1
    require_complete(begun)


def test_each_step_is_durable_when_it_is_told(begun: World) -> None:
    begun.commit_many(5, first=1)
    capturing = begun.capture()
    for step in capturing.capture(capturing.source.offset(), max_changes=EVERYTHING, step_changes=1, cancelled=never):
        state = begun.state()
        assert (state.last_seqno, state.captured_offset) == (step.last_seqno, step.captured_offset)


def test_the_source_lets_go_of_what_the_log_has_when_the_read_is_over(begun: World) -> None:
    """But for what it proves itself with: the last transaction, at most."""
    begun.commit_many(3, first=1)
    capturing = begun.capture()
    middle = capturing.source.offset()
    begun.commit_many(3, first=10)
    steps = list(capturing.capture(capturing.source.offset(), max_changes=EVERYTHING, step_changes=1, cancelled=never))
    assert steps[-1].done
    assert middle <= (begun.released() or 0) <= begun.state().captured_offset


def test_a_read_of_nothing_is_done_and_says_so_once(begun: World) -> None:
    capturing = begun.capture()
    until = capturing.source.offset()
    (step,) = capturing.capture(until, max_changes=1, cancelled=never)
    assert (step.done, step.row_count, step.transaction_count, step.first_seqno) == (True, 0, 0, None)
    assert step.captured_offset >= until
    (again,) = capturing.capture(until, max_changes=1, cancelled=never)
    assert again.done


def test_one_process_reads_on_where_another_ended(begun: World) -> None:
    for first in range(1, 40, 10):
        begun.commit_many(3, first=first)
        catch_up(begun, max_changes=first)
        assert begun.logged() == begun.committed


def test_changes_are_sensed_until_they_are_captured(begun: World) -> None:
    assert not begun.capture().has_changes(begun.state().place)
    begun.commit_many(1, first=1)
    assert begun.capture().has_changes(begun.state().place)
    catch_up(begun)
    assert not begun.capture().has_changes(begun.state().place)


def test_offsets_only_grow_and_are_shown_as_they_are_read(begun: World) -> None:
    source, seen = begun.capture().source, []
    for key in range(3):
        begun.commit_many(1, first=key)
        seen.append(source.offset())
    assert seen == sorted(set(seen))
    assert all(0 <= offset < 2**63 for offset in seen)
    shown = [begun.connector.show_offset(offset) for offset in seen]
    assert [begun.connector.parse_offset(f" {text} ") for text in shown] == seen
    for text in ("", "x", "-1", shown[0] + "!"):
        with pytest.raises(ConfigurationError):
            begun.connector.parse_offset(text)


def test_a_time_that_is_past_stays_past_and_what_committed_before_is_below_the_offset(begun: World) -> None:
    source, start = begun.capture().source, datetime.now(UTC) - timedelta(hours=1)
    assert source.is_past(start)
    assert not source.is_past(datetime.now(UTC) + timedelta(hours=1))
    begun.commit_many(2, first=1)
    moment = datetime.now(UTC)
    while not source.is_past(moment):
        pass
    assert source.is_past(moment)
    assert source.is_past(start)
    (*_, last) = begun.capture().capture(source.offset(), max_changes=EVERYTHING, cancelled=never)
    assert last.done
    assert begun.logged() == begun.committed


# --- the first run ---


def test_a_first_run_makes_stream_and_log_and_a_second_one_finds_them(world: World) -> None:
    first = world.capture().prepare()
    assert world.released() is not None
    assert any(first.log_id in line for line in first.created)
    assert world.state().relations[0].columns == world.capture().source.relations()[0].columns
    again = world.capture().prepare()
    assert (again.log_id, again.tables, again.created) == (first.log_id, first.tables, ())
    world.commit_many(2, first=1)
    require_complete(world)


def test_rows_are_copied_between_the_stream_and_the_log(world: World) -> None:
    world.commit_many(3, first=1)
    copied: list[tuple[Snapshot, Transactions]] = []

    def copy(snapshot: Snapshot) -> None:
        assert world.released() is not None, "what commits during the copy is lost"
        assert not first_run.log_exists(world.config.log_url), "a log that nobody may read is there"
        copied.append((snapshot, [*world.committed]))
        world.commit_many(2, first=100)

    prepared = world.capture(start=Start.COPY).prepare(copy)
    ((snapshot, before),) = copied
    assert snapshot.log_id == prepared.log_id
    assert [relation.name for relation in snapshot.relations] == ["public.t"]
    assert world.state().captured_offset == snapshot.offset
    catch_up(world)
    assert world.logged() == world.committed[len(before) :]
    world.capture(start=Start.COPY).prepare(copy)
    assert len(copied) == 1, "a run that is not the first copies nothing"


def test_a_copy_that_raises_leaves_no_stream_and_the_next_begins_anew(world: World) -> None:
    def fail(snapshot: Snapshot) -> None:
        raise SourceError("the copy broke")

    with pytest.raises(SourceError, match="the copy broke"):
        world.capture(start=Start.COPY).prepare(fail)
    assert world.released() is None
    world.commit_many(2, first=1)
    before = [*world.committed]
    world.capture(start=Start.COPY).prepare(lambda snapshot: None)
    world.commit_many(1, first=10)
    catch_up(world)
    assert world.logged() == world.committed[len(before) :]


def test_start_copy_without_who_copies_is_refused_before_anything_is_made(world: World) -> None:
    with pytest.raises(ConfigurationError, match="cannot copy"):
        world.capture(start=Start.COPY).prepare()
    assert world.released() is None


def test_rows_that_nobody_copies_are_refused(world: World) -> None:
    world.commit_many(1, first=1)
    with pytest.raises(ConfigurationError, match="rows"):
        world.capture().prepare()
    assert world.released() is None


def test_a_first_run_whose_tables_are_not_those_that_were_checked_is_begun_anew(world: World) -> None:
    def copy(snapshot: Snapshot) -> None:
        raise AssertionError("what was not checked is copied")

    capturing = world.capture(start=Start.COPY)
    with pytest.raises(SourceChanged, match="redefined"):
        capturing.prepare(copy, checked=())
    assert world.released() is None
    prepared = world.capture().prepare(checked=world.capture().source.relations())
    assert prepared.tables == ("public.t",)


@pytest.mark.parametrize("point", ["create_log", "before commit", "behind commit"])
def test_a_first_run_that_died_at_any_line_is_taken_up_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def dying(*arguments: Any, **named: Any) -> Any:
        if point == "create_log":
            raise Died
        place, _ = point.split()
        return Mined(open_writer(*arguments, **named), Bomb(1 if place == "before" else 2), "commit")

    with monkeypatch.context() as patch:
        patch.setattr(first_run, "create_log" if point == "create_log" else "open_writer", dying)
        with pytest.raises(Died):
            world.capture().prepare()
    world.capture().prepare()
    world.commit_many(2, first=1)
    require_complete(world)


def test_a_stream_that_was_dropped_is_a_loss_and_never_begun_anew_under_a_log_with_a_history(begun: World) -> None:
    begun.commit_many(1, first=1)
    catch_up(begun)
    begun.drop()
    assert begun.released() is None
    for attempt in (lambda: begun.capture().prepare(), lambda: catch_up(begun)):
        with pytest.raises(SourceError, match="changes are missing"):
            attempt()
    assert begun.logged() == begun.committed


def test_a_log_of_another_stream_is_refused(begun: World, tmp_path_factory: pytest.TempPathFactory) -> None:
    begun.config = type(begun.config)(
        **{
            **{name: getattr(begun.config, name) for name in begun.config.__dataclass_fields__},
            "log_url": str(tmp_path_factory.mktemp("elsewhere") / "log"),
        }
    )
    with pytest.raises(SourceError, match="which is not"):
        begun.capture().prepare()
