"""A session that tests are handed on (`tests/support/handed_on.py`) is as a new one would be."""

from __future__ import annotations

from contextlib import closing, suppress

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support import handed_on
from tests.support.rig import execute

_ORIGIN = "SELECT pg_replication_origin_create('handed on'), pg_replication_origin_session_setup('handed on')"
_NO_ORIGIN = "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE roname = 'handed on'"


def used(dsn: str, *statements: str) -> int:
    """The server's process of a session that has executed them, and was closed."""
    with closing(psycopg.connect(dsn, autocommit=True, application_name="used")) as connection:
        for statement in statements:
            with suppress(psycopg.OperationalError):
                connection.execute(statement)
        return connection.info.backend_pid


def test_it_keeps_nothing_of_who_had_it(source_dsn: str) -> None:
    former = used(
        source_dsn,
        "SET timezone = 'Asia/Tokyo'",
        "SET ROLE pg_monitor",
        "CREATE TEMP TABLE t ()",
        "LISTEN c",
        "PREPARE p AS SELECT 1",
        "SELECT pg_advisory_lock(1)",
    )
    with psycopg.connect(source_dsn) as connection:
        assert connection.info.backend_pid == former
        assert not connection.autocommit
        assert connection.execute(
            "SELECT current_setting('timezone'), current_user::text, to_regclass('t'),"
            " current_setting('application_name'), (SELECT count(*) FROM pg_listening_channels()),"
            " (SELECT count(*) FROM pg_prepared_statements),"
            " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())"
        ).fetchone() == ("UTC", "postgres", None, "", 0, 0, 0)


@pytest.mark.parametrize(
    ("change", "back"),
    [
        ("ALTER DATABASE {} SET jit = on", "ALTER DATABASE {} RESET jit"),
        ("ALTER ROLE postgres SET jit = on", "ALTER ROLE postgres RESET jit"),
        ("ALTER DATABASE {} CONNECTION LIMIT 90", "ALTER DATABASE {} CONNECTION LIMIT -1"),
        ("CREATE EVENT TRIGGER enter ON login EXECUTE FUNCTION enter()", "DROP EVENT TRIGGER enter"),
    ],
)
def test_it_is_another_one_where_a_new_one_would_begin_otherwise(source_dsn: str, change: str, back: str) -> None:
    database = conninfo_to_dict(source_dsn)["dbname"]
    former = used(source_dsn, "CREATE FUNCTION enter() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'")
    assert used(source_dsn, change.format(database)) == former
    try:
        assert used(source_dsn) != former
    finally:
        execute(source_dsn, back.format(database))


@pytest.mark.parametrize("last", ["BEGIN", _ORIGIN, "SELECT pg_terminate_backend(pg_backend_pid())"])
def test_it_is_another_one_than_one_that_cannot_be_as_new(source_dsn: str, last: str) -> None:
    former = used(source_dsn, last)
    assert used(source_dsn, _NO_ORIGIN) != former


def test_whoever_is_to_meet_new_ones_does(source_dsn: str, new_sessions: None) -> None:
    assert used(source_dsn) != used(source_dsn)


def test_none_of_before_rests_beside_new_ones(source_dsn: str) -> None:
    database = conninfo_to_dict(source_dsn)["dbname"]
    used(source_dsn)
    with handed_on.new_sessions():
        renamed = f"ALTER DATABASE {database} RENAME TO renamed", f"ALTER DATABASE renamed RENAME TO {database}"
        execute(make_conninfo(source_dsn, dbname="postgres"), *renamed)


def test_other_roles_begin_anew(source_dsn: str) -> None:
    execute(source_dsn, "CREATE ROLE handed_on_to_nobody LOGIN")
    try:
        dsn = make_conninfo(source_dsn, user="handed_on_to_nobody")
        assert used(dsn) != used(dsn)
    finally:
        execute(source_dsn, "DROP ROLE handed_on_to_nobody")
