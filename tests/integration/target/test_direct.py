"""Units of insertions that are committed where they are loaded: once, whoever does it, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest

from airflow_parallel_apply.pipeline.errors import DirectRefused, OwnershipLost, Unavailable
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import Branch, StagedUnit, Unit
from airflow_parallel_apply.pipeline.target.loading import Loaded
from airflow_parallel_apply.pipeline.target.postgres.load.loader import PostgresLoader
from tests.crash.scene import wait_until
from tests.integration.target.conftest import CLAIM, Scene, insert
from tests.support.log_rows import Row, clustered
from tests.support.variants import gated

ROWS = [insert(seqno, str(seqno), f"n{seqno}") for seqno in range(5)]


@pytest.fixture
def note(scene: Scene, add_table: Callable[..., Relation]) -> Scene:
    """A table, and channel 0 of two taken."""
    scene.run("CREATE TABLE note (id text PRIMARY KEY, note text)")
    add_table(1, "note", "id note", key="id")
    scene.start(channels=2)
    scene.target.take(0, generation=scene.generation, token=CLAIM)
    return scene


def unit(scene: Scene, *, rows: int = len(ROWS), token: str = CLAIM, last: int = 4) -> Unit:
    return replace(scene.unit(last, token=token), kind=Branch(0, is_direct=True), row_count=rows)


def load(scene: Scene, found: Unit, rows: Sequence[Row] = ROWS) -> Loaded:
    relations = tuple(scene.relations.values())
    loader = PostgresLoader(
        url=scene.dsn, pipeline="demo", channel=0, token=found.token, relations=relations, direct=found
    )
    return loader.load(clustered(scene.relations, rows), str(next(scene.attempts)))


def ids(scene: Scene) -> list[object]:
    return [key for (key,) in scene.run("SELECT id FROM note ORDER BY id")]


@contextmanager
def held_position(scene: Scene) -> Iterator[psycopg.Connection]:
    """A lock for which whoever moves a position waits."""
    with psycopg.connect(scene.dsn) as connection:
        connection.execute("SELECT FROM parallel_apply.position FOR UPDATE")
        yield connection


def waiting(scene: Scene) -> int:
    (count,) = scene.run(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )[0]
    assert isinstance(count, int)
    return count


@gated
def test_rows_and_position_are_there_together_and_nothing_is_staged(note: Scene) -> None:
    found = unit(note)
    loaded = load(note, found)
    assert [table.is_committed for table in loaded.tables] == [True]
    assert (ids(note), note.seqnos()[0], note.staging()) == (list("01234"), 4, [])
    note.commit(StagedUnit(unit=found, tables=loaded.tables, row_count=5, seconds=0))
    assert (ids(note), note.seqnos()) == (list("01234"), [4, -1])


@gated
def test_a_retry_behind_the_commit_says_that_it_is_done(note: Scene) -> None:
    """As of a worker that died before it told anybody."""
    load(note, unit(note))
    again = load(note, unit(note))
    assert (again.tables[0].is_committed, again.row_count) == (True, 5)
    assert ids(note) == list("01234")


@gated
@pytest.mark.parametrize("key", ["id", ""])
def test_of_two_attempts_at_once_one_commits_and_both_say_so(
    note: Scene, add_table: Callable[..., Relation], key: str
) -> None:
    """Without a key nothing but the position keeps the rows from being there twice."""
    if not key:
        note.run("ALTER TABLE note DROP CONSTRAINT note_pkey")
        add_table(1, "note", "id note")
    with ThreadPoolExecutor(2) as pool:
        with held_position(note):
            attempts: list[Future[Loaded]] = [pool.submit(load, note, unit(note)) for _ in range(2)]
            wait_until(lambda: waiting(note) == 2, what="both attempts to wait")
        assert [attempt.result().tables[0].is_committed for attempt in attempts] == [True, True]
    assert (ids(note), note.seqnos()[0]) == (list("01234"), 4)


@gated
def test_an_attempt_whose_claim_was_taken_leaves_nothing(note: Scene) -> None:
    with ThreadPoolExecutor(2) as pool:
        with held_position(note):
            attempt = pool.submit(load, note, unit(note))
            wait_until(lambda: waiting(note) == 1, what="the attempt to wait")
            taken = pool.submit(note.another().target.take, 0, generation=note.generation, token="next")
            with pytest.raises((OwnershipLost, Unavailable)):
                attempt.result()
        assert taken.result().seqno == -1
    assert (ids(note), note.seqnos()[0]) == ([], -1)
    with pytest.raises(OwnershipLost):
        load(note, unit(note))


@gated
def test_rows_that_the_table_refuses_leave_nothing_and_are_staged_by_another_job(note: Scene) -> None:
    note.run("INSERT INTO note VALUES ('3', 'in the way')")
    with pytest.raises(DirectRefused) as refused:
        load(note, unit(note))
    assert refused.value.table == "public.note"
    assert (ids(note), note.seqnos()[0], note.staging()) == (["3"], -1, [])
    note.run("DELETE FROM note")
    note.commit(note.stage(unit(note).staged(), ROWS))
    assert (ids(note), note.seqnos()[0]) == (list("01234"), 4)


def test_a_table_with_triggers_that_act_on_applied_rows_is_staged_for(note: Scene) -> None:
    body = "BEGIN NEW.note := upper(NEW.note); RETURN NEW; END"
    note.run(f"CREATE FUNCTION loud() RETURNS trigger LANGUAGE plpgsql AS '{body}'")
    note.run("CREATE TRIGGER loud BEFORE INSERT ON note FOR EACH ROW EXECUTE FUNCTION loud()")
    note.run("ALTER TABLE note ENABLE ALWAYS TRIGGER loud")
    loaded = load(note, unit(note))
    assert [table.is_committed for table in loaded.tables] == [False]
    assert (ids(note), note.seqnos()[0], len(note.staging())) == ([], -1, 1)


@gated
def test_rows_that_are_fewer_than_planned_are_not_committed(note: Scene) -> None:
    with pytest.raises(DirectRefused, match="5 insertions in 5 rows of 6"):
        load(note, unit(note, rows=6))
    assert (ids(note), note.seqnos()[0]) == ([], -1)


@gated
def test_changes_that_are_no_insertions_are_not_committed(note: Scene) -> None:
    rows = [*ROWS, Row(seqno=4, operation="D", values=("9", None), fragno=1)]
    with pytest.raises(DirectRefused):
        load(note, unit(note, rows=6), rows)
    assert (ids(note), note.seqnos()[0]) == ([], -1)


@gated
def test_a_unit_that_the_plan_has_lost_is_not_committed(note: Scene) -> None:
    with pytest.raises(OwnershipLost, match="no planned epoch 7"):
        load(note, replace(unit(note), epoch=7))
    assert (ids(note), note.seqnos()[0]) == ([], -1)


def test_the_commit_waits_for_the_disk_as_the_target_says(note: Scene) -> None:
    """Staging does not: it is made again."""
    with psycopg.connect(note.dsn, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO told VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$"
        )
        connection.execute("CREATE TABLE told (how text)")
        connection.execute(
            "CREATE CONSTRAINT TRIGGER tell AFTER UPDATE ON parallel_apply.position DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION tell()"
        )
        connection.execute("ALTER TABLE parallel_apply.position ENABLE ALWAYS TRIGGER tell")
    load(note, unit(note))
    (expected,) = note.run("SHOW synchronous_commit")
    assert note.run("SELECT how FROM told") == [expected]
