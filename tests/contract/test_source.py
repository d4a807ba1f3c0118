"""Promises of every source, and what `pipeline/capture` makes of them: law 7 at each line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from airflow_parallel_apply.pipeline.capture import loop
from airflow_parallel_apply.pipeline.capture.capture import Capture
from airflow_parallel_apply.pipeline.errors import ConfigurationError, Unavailable
from airflow_parallel_apply.pipeline.log.writing import open_writer
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from tests.contract.sources import EVERYTHING, SOURCES, World, catch_up, never, require_complete
from tests.support.mines import Bomb, Died, Mined
from tests.support.variants import gated
from tests.support.written_log import Change


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


def mine(capturing: Capture, bomb: Bomb, patch: pytest.MonkeyPatch) -> Capture:
    def opened(url: str, **options: Any) -> Any:
        return Mined(open_writer(url, **options), bomb, "see", "register", "append", "commit")

    patch.setattr(loop, "open_writer", opened)
    source: Any = Mined(capturing.source, bomb, "release", "reach", "look")
    return Capture(source, capturing._config)


@gated
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


@gated
def test_a_read_that_is_cancelled_moves_nothing(begun: World) -> None:
    begun.commit_many(3, first=1)
    before, released = begun.state(), begun.released()
    capturing = begun.capture()
    (step,) = capturing.capture(capturing.source.offset(), max_changes=EVERYTHING, cancelled=lambda: True)
    assert (step.done, step.row_count, step.last_seqno) == (False, 0, NO_SEQNO)
    assert (begun.state(), begun.released()) == (before, released)
    require_complete(begun)


@gated
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


@gated
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


@gated
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


@gated
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


@gated
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
