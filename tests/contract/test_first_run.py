"""The first run of every source: stream, copy and log begin together, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_parallel_apply.pipeline.capture import copying, first_run
from airflow_parallel_apply.pipeline.capture.values import IntoLog
from airflow_parallel_apply.pipeline.config import Start
from airflow_parallel_apply.pipeline.errors import ConfigurationError, OwnershipLost, SourceError
from airflow_parallel_apply.pipeline.log.copy_note import read_copy_note
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.remove import remove_log
from airflow_parallel_apply.pipeline.log.writing import open_writer
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.model.copy_progress import CopyProgress
from airflow_parallel_apply.pipeline.source.protocol import Snapshot, SourceChanged
from tests.contract.sources import SOURCES, Transactions, World, catch_up, require_complete
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


def replayed(transactions: Transactions) -> dict[int, str | None]:
    """The table's rows behind them. What is lost, or comes twice, contradicts what follows."""
    rows: dict[int, str | None] = {}
    for change in (change for changes in transactions for change in changes):
        if change.operation == "T":
            rows.clear()
        elif change.operation == "D":
            del rows[change.id]
        else:
            assert (change.id in rows) == (change.operation == "U"), change
            rows[change.id] = change.v
    return rows


def into_log(*, cancelled: bool = False) -> IntoLog:
    return IntoLog(report=lambda progress: None, cancelled=lambda: cancelled)


def test_a_copy_into_the_log_is_the_logs_first_transactions(world: World) -> None:
    world.config = replace(world.config, epoch_max_changes=2)
    world.commit_many(5, first=1)
    world.commit(Change("U", 3, "tab\t, newline\n and \\N"), Change("U", 4, None), Change("D", 1))
    told: list[CopyProgress] = []
    prepared = world.capture(start=Start.COPY).prepare(IntoLog(report=told.append, cancelled=lambda: False))
    assert any("Copied 4 rows of 1 tables" in line for line in prepared.created)
    assert (told[-1].phase, told[-1].rows, told[-1].fraction) == ("finished", 4, 1.0)
    assert [len(changes) for changes in world.logged()] == [2, 2], "no transaction is larger than an epoch"
    assert replayed(world.logged()) == replayed(world.committed)
    assert [relation.first_seqno for relation in world.state().relations] == [NO_SEQNO]
    before = [*world.committed]
    world.commit(Change("D", 2), Change("U", 3, "later"))
    catch_up(world)
    assert world.logged()[2:] == world.committed[len(before) :]
    log = open_reader(world.config.log_url)
    marks = log.transactions(NO_SEQNO, log.state().last_seqno).column("marks").to_pylist()
    assert marks == [["copy"], ["copy"], []]
    assert log.identity.begins_empty, "who begins with no rows may begin with this log"
    world.capture(start=Start.COPY).prepare(into_log())
    assert len(world.logged()) == 3, "a run that is not the first copies nothing"
    assert remove_log(world.config.log_url, stream=world.config.stream)
    assert not Path(world.config.log_url).exists()


def test_tables_without_rows_are_copied_as_such(world: World) -> None:
    world.capture(start=Start.COPY).prepare(into_log())
    world.commit_many(2, first=1)
    require_complete(world)


def test_a_copy_into_the_log_that_is_cancelled_leaves_no_stream_and_nothing_in_the_log(world: World) -> None:
    world.commit_many(3, first=1)
    with pytest.raises(OwnershipLost, match="cancelled"):
        world.capture(start=Start.COPY).prepare(into_log(cancelled=True))
    assert world.released() is None
    assert world.logged() == []
    assert read_copy_note(world.config.log_url)["phase"] == "failed"  # type: ignore[index]
    world.capture(start=Start.COPY).prepare(into_log())
    assert replayed(world.logged()) == replayed(world.committed)


LINES = 12
"""Where the writers of such a first run are called, and where they return."""


@pytest.mark.parametrize(
    ("world", "fuse"),
    [
        *(("memory", fuse) for fuse in range(1, LINES + 1)),
        *(pytest.param("postgres", fuse, marks=pytest.mark.long) for fuse in (1, 5, 11)),
        ("postgres", LINES),
    ],
    indirect=["world"],
)
def test_a_copy_into_the_log_that_died_at_any_line_is_whole_after_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch, fuse: int
) -> None:
    """Nothing is lost and nothing is twice, though the next one is of another snapshot."""
    world.config = replace(world.config, epoch_max_changes=2)
    world.commit_many(5, first=1)
    bomb = Bomb(fuse)

    def mined(*arguments: Any, **named: Any) -> Any:
        return Mined(open_writer(*arguments, **named), bomb, "empty", "append", "commit")

    with monkeypatch.context() as patch:
        patch.setattr(first_run, "open_writer", mined)
        patch.setattr(copying, "open_writer", mined)
        with pytest.raises(Died):
            world.capture(start=Start.COPY).prepare(into_log())
    world.commit(Change("U", 1, "between"), Change("D", 5), Change("I", 6, "new"))
    world.capture(start=Start.COPY).prepare(into_log())
    world.commit(Change("U", 6, "after"))
    catch_up(world)
    assert replayed(world.logged()) == replayed(world.committed)
    assert world.logged()[-1] == world.committed[-1]
    assert not world.capture().has_changes(world.state().place)
    named = {
        path.name.partition(".")[0] for path in (open_reader(world.config.log_url).root or Path()).glob("segments/*")
    }
    assert {segment.name for segment in world.state().segments} <= named
    assert len(named) <= len(world.state().segments) + 1, "half of a copy stays on disk"


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


@gated
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
