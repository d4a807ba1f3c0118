"""A first run that meets migrations: the stream begins with what was checked and copied, or begins anew."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from airflow_parallel_apply.pipeline.config import Start
from airflow_parallel_apply.pipeline.copy.postgres.initial import InitialCopy
from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.pipeline.source.postgres import session
from airflow_parallel_apply.pipeline.source.postgres.setup import first_run
from tests.support.copying import copying_rig, require_equal
from tests.support.rig import Rig, execute
from tests.support.variants import gated

_DEADLINE_SECONDS = 120.0


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return copying_rig(source_dsn, target_dsn, tmp_path, monkeypatch).having(create_tables=True)


def wait_for_lock(rig: Rig) -> None:
    """Until a session at the source waits for a relation's lock."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    query = (
        "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
        "WHERE NOT l.granted AND l.locktype = 'relation' AND d.datname = current_database()"
    )
    while rig.rows(query, side="source") == [(0,)]:
        assert time.monotonic() < deadline, "nobody waits for the migration"


def test_a_migration_that_commits_while_the_copy_waits_for_its_lock_is_copied(rig: Rig) -> None:
    rig.write("CREATE TABLE t (id integer PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 50)")
    migrating = psycopg.connect(rig.source_dsn)
    locked = first_run.held

    with ThreadPoolExecutor(max_workers=1) as pool, pytest.MonkeyPatch.context() as patch:

        def migrate_first(*arguments: Any) -> Any:
            patch.undo()
            migrating.execute("ALTER TABLE t ADD c integer NOT NULL DEFAULT 0")
            migrating.execute("UPDATE t SET c = id * 100")
            pool.submit(lambda: (wait_for_lock(rig), migrating.commit()))
            return locked(*arguments)

        patch.setattr(first_run, "held", migrate_first)
        rig.prepare()
    migrating.close()
    require_equal(rig)
    assert rig.rows("SELECT sum(c) FROM t") == [(127_500,)]
    rig.write("UPDATE t SET c = c + 1")
    rig.run()
    require_equal(rig)


@gated
@pytest.mark.parametrize(
    "migration", ["ALTER TABLE t RENAME TO s", pytest.param("DROP TABLE t", marks=pytest.mark.long)]
)
def test_a_table_whose_name_goes_while_its_lock_is_waited_for_begins_the_first_run_anew(
    rig: Rig, migration: str
) -> None:
    rig.write(*(f"CREATE TABLE {name} (id integer PRIMARY KEY)" for name in "tu"), "INSERT INTO t VALUES (1)")
    with psycopg.connect(rig.source_dsn) as migrating, ThreadPoolExecutor(max_workers=1) as pool:
        migrating.execute(migration)
        pool.submit(lambda: (wait_for_lock(rig), migrating.commit()))
        rig.prepare()
    rig.write("INSERT INTO u VALUES (100)")
    rig.run()
    require_equal(rig)


@gated
@pytest.mark.parametrize("start", [Start.COPY, pytest.param(Start.EMPTY, marks=pytest.mark.long)])
def test_a_table_made_between_the_check_and_the_slot_is_followed_from_the_start(
    rig: Rig, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig.having(start=start, create_tables=start is Start.COPY)
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)")
    make = [(rig.source_dsn, "CREATE TABLE made (id integer PRIMARY KEY)")]
    if start is Start.COPY:
        make.append((rig.source_dsn, "INSERT INTO made SELECT generate_series(1, 7)"))
    else:
        make.append((rig.target_dsn, "CREATE TABLE made (id integer PRIMARY KEY)"))
    locked = first_run.held

    def make_first(*arguments: Any) -> Any:
        for dsn, statement in make:
            execute(dsn, statement)
        make.clear()
        return locked(*arguments)

    monkeypatch.setattr(first_run, "held", make_first)
    assert set(rig.prepare().tables) == {"public.made", "public.t"}
    rig.write("INSERT INTO made VALUES (100)")
    rig.run()
    require_equal(rig)


@gated
def test_no_migration_comes_between_the_last_row_and_the_first_definition(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.write("CREATE TABLE t (id integer PRIMARY KEY, b text)", "INSERT INTO t VALUES (1, 'one')")
    copy = InitialCopy.run
    with ThreadPoolExecutor(max_workers=1) as pool:

        def migrate_behind(self: InitialCopy, snapshot: Any) -> None:
            copy(self, snapshot)
            pool.submit(execute, rig.source_dsn, "ALTER TABLE t RENAME b TO c")
            wait_for_lock(rig)

        monkeypatch.setattr(InitialCopy, "run", migrate_behind)
        rig.prepare()
    execute(rig.target_dsn, "ALTER TABLE t RENAME b TO c")
    rig.write("INSERT INTO t VALUES (2, 'two')")
    rig.run()
    require_equal(rig)


@gated
@pytest.mark.parametrize(
    ("database", "statement", "shown"),
    [
        (None, "INSERT INTO t VALUES (1)", "left over. Run COMMIT PREPARED"),
        (None, "ALTER TABLE t ADD c integer", "left over. Run COMMIT PREPARED"),
        ("postgres", "SELECT pg_current_xact_id()", "left over (in the database postgres). Run COMMIT PREPARED"),
    ],
    ids=["a row", "a definition", "in another database"],
)
def test_a_prepared_transaction_that_holds_up_the_first_run_is_named(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, database: str | None, statement: str, shown: str
) -> None:
    rig.write("CREATE TABLE t (id integer PRIMARY KEY)")
    monkeypatch.setitem(session._AT_SOURCE, "lock_timeout", "300ms")
    dsn = make_conninfo(rig.source_dsn, **({} if database is None else {"dbname": database}))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("BEGIN")
        connection.execute(statement.encode())
        connection.execute("PREPARE TRANSACTION 'left over'")
        try:
            with pytest.raises(Unavailable) as raised:
                rig.prepare()
            assert f"(pg_prepared_xacts): {shown}" in (raised.value.hint or "")
        finally:
            connection.execute("COMMIT PREPARED 'left over'")
    rig.prepare()
    require_equal(rig)
