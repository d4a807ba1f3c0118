"""DDL messages mean at the target what they meant in the session that sent them."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.target.postgres.redefine.sent_paths import under_sent_path
from airflow_parallel_apply.pipeline.target.steps import Statement
from tests.support.ddl_messages import ddl, install
from tests.support.rig import Rig, execute
from tests.support.variants import gated, variants

STATEMENTS = {
    "a time zone": ("SET timezone = 'Asia/Tokyo'", "ALTER TABLE public.t ALTER a TYPE timestamptz", "2024-01-01 00:00"),
    "a style of dates": ("SET datestyle = 'SQL, DMY'", "ALTER TABLE public.t ALTER a TYPE text", "2024-02-01 00:00"),
    "bytes and digits": (
        "SET bytea_output = escape; SET extra_float_digits = 0; SET array_nulls = off",
        "ALTER TABLE t ALTER a TYPE text USING 'A'::bytea::text || (0.1::float8 + 0.2) || '{NULL}'::text[]::text",
        "2024-01-01 00:00",
    ),
    "strings with escapes": (
        "SET standard_conforming_strings = off; SET timezone = 'Asia/Tokyo'",
        r"ALTER TABLE t ALTER a TYPE text USING a::timestamptz AT TIME ZONE 'UTC' || 'a\\b\n'",
        "2024-01-01 00:00",
    ),
    "of its own": (
        "SET timezone = 'Asia/Tokyo'",
        "SET timezone = 'Asia/Tokyo'; SET datestyle = 'SQL, DMY'; ALTER TABLE public.t ALTER a TYPE timestamptz",
        "2024-01-01 00:00",
    ),
}


@gated
@pytest.mark.parametrize("case", variants(STATEMENTS, seldom=["a style of dates", "bytes and digits"]))
def test_what_a_statement_made_of_older_rows_under_the_session_s_settings_it_makes_at_the_target(
    rig: Rig, case: str
) -> None:
    setting, statement, value = STATEMENTS[case]
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, a timestamp)")
    rig.prepare()
    rig.write(f"INSERT INTO t VALUES (1, '{value}')")
    rig.run()
    rig.transaction(setting, statement, rig.ddl(statement), "INSERT INTO t VALUES (2, '2024-03-04 05:06')")
    rig.write("INSERT INTO t VALUES (3, '2024-03-04 05:06')")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
def test_bounds_and_conditions_mean_at_the_target_what_they_meant_in_their_session(rig: Rig) -> None:
    statements = (
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM ('01/02/2025') TO ('01/03/2025')",
        "ALTER TABLE t ADD CONSTRAINT late CHECK (at > '01/02/2024')",
    )
    rig.both("CREATE TABLE t (at timestamptz) PARTITION BY RANGE (at)")
    rig.prepare()
    rig.transaction(
        "SET timezone = 'Asia/Tokyo'",
        "SET datestyle = 'SQL, DMY'",
        *(one for text in statements for one in (text, rig.ddl(text))),
        "INSERT INTO t VALUES ('01/02/2025')",
    )
    rig.run()
    made = (
        "SELECT pg_get_expr(relpartbound, oid), (SELECT pg_get_constraintdef(k.oid) FROM pg_constraint k "
        "WHERE k.conrelid = c.oid AND contype = 'c') FROM pg_class c WHERE relname = 't_1'"
    )
    assert rig.rows(made) == rig.rows(made, side="source")


_DOUBLED = "ALTER TABLE t ALTER a TYPE integer USING a * 2"
_FORMER = """
CREATE FUNCTION parallel_apply.send_ddl(statement text) RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT FROM parallel_apply.send_signed('parallel_apply.ddl', statement) $$
"""
"""As an earlier version installed it."""


def with_two_schemas(rig: Rig) -> None:
    """A table of one name in each, and rows that tell the two apart."""
    tables = ("public.t", '"An app"."t"')
    rig.both(
        'CREATE SCHEMA "An app"', *(f"CREATE TABLE {table} (id integer PRIMARY KEY, a integer)" for table in tables)
    )
    install(rig.source_dsn)
    rig.prepare()
    rig.write(*(f"INSERT INTO {table} VALUES (1, {number})" for number, table in enumerate(tables, 10)))
    rig.run()


def follow_the_rest(rig: Rig) -> None:
    """Rows behind the statement, of both tables."""
    for table in ("public.t", '"An app".t'):
        rig.write(
            f"INSERT INTO {table} SELECT max(id) + 1, 5 FROM {table}", f"UPDATE {table} SET a = a + 1 WHERE id = 2"
        )
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
@pytest.mark.parametrize(
    "path",
    [
        "'An app', public",
        pytest.param("nowhere, 'An app'", marks=pytest.mark.long),
        pytest.param("pg_catalog, 'An app'", marks=pytest.mark.long),
    ],
)
def test_names_without_a_schema_mean_the_tables_that_they_meant_for_the_sender(rig: Rig, path: str) -> None:
    with_two_schemas(rig)
    rig.transaction(f"SET search_path = {path}", _DOUBLED, ddl(_DOUBLED))
    follow_the_rest(rig)


@gated
def test_the_target_s_own_search_path_is_of_no_account(rig: Rig) -> None:
    with_two_schemas(rig)
    with psycopg.connect(rig.target_dsn, autocommit=True) as connection:
        connection.execute(f"""ALTER DATABASE "{connection.info.dbname}" SET search_path = 'An app'""")
    rig.transaction(_DOUBLED, ddl(_DOUBLED), "SET LOCAL search_path = ''", ddl("SELECT 1"))
    follow_the_rest(rig)


@gated
def test_a_path_of_the_caller_s_user_and_of_a_function_goes_along(rig: Rig) -> None:
    with_two_schemas(rig)
    rig.write('CREATE ROLE "An app" SUPERUSER')
    try:
        rig.transaction(
            """SET SESSION AUTHORIZATION 'An app'""", """SET search_path = "$user", public""", _DOUBLED, ddl(_DOUBLED)
        )
        rig.write(
            f"""CREATE FUNCTION public.migrate() RETURNS void LANGUAGE plpgsql SET search_path = 'An app' AS
            $f$ BEGIN EXECUTE '{_DOUBLED}'; PERFORM parallel_apply.send_ddl('{_DOUBLED}'); END $f$""",
            "SELECT public.migrate()",
        )
        follow_the_rest(rig)
    finally:
        rig.write('DROP ROLE "An app"')


@gated
@pytest.mark.parametrize(
    "statement", ["CREATE TABLE t (id integer PRIMARY KEY, a integer)", "CREATE INDEX ON public.t (a)"]
)
def test_a_schema_of_the_path_that_the_target_lacks_stops_the_run_and_the_hint_leads_on(
    rig: Rig, statement: str
) -> None:
    with_two_schemas(rig)
    rig.write("CREATE SCHEMA more")
    rig.transaction("SET search_path = more, public", statement, ddl(statement))
    with pytest.raises(TargetError, match="more is not there, so its names may mean other tables: CREATE") as refused:
        rig.run()
    assert 'Run CREATE SCHEMA "more" at the target' in str(refused.value)
    execute(rig.target_dsn, "CREATE SCHEMA more")
    if "TABLE" in statement:
        rig.write("INSERT INTO more.t VALUES (1, 1)")
    follow_the_rest(rig)


@gated
def test_a_schema_of_the_path_is_granted_to_the_role_that_acts(rig: Rig) -> None:
    """A role that a login becomes by default."""
    with_two_schemas(rig)
    name = rig.rows("SELECT current_database()")[0][0]
    login, acting = f"{name}_login", f"{name}_acts"
    execute(
        rig.target_dsn,
        f"CREATE ROLE {acting}",
        f"CREATE ROLE {login} LOGIN IN ROLE {acting}",
        f"ALTER ROLE {login} SET role = {acting}",
    )
    step = Statement(text='SET LOCAL search_path = "An app"; CREATE INDEX ON t (a)')
    try:
        with (
            psycopg.connect(make_conninfo(rig.target_dsn, user=login)) as connection,
            pytest.raises(TargetError) as refused,
            under_sent_path(connection, step),
        ):
            connection.execute("SELECT FROM t")
    finally:
        execute(rig.target_dsn, f"DROP ROLE {login}", f"DROP ROLE {acting}")
    assert f'Run GRANT USAGE ON SCHEMA "An app" TO "{acting}" at the target' in str(refused.value)


@gated
def test_a_schema_that_the_statement_makes_or_removes_may_be_in_the_path(rig: Rig) -> None:
    with_two_schemas(rig)
    make, remove = "CREATE SCHEMA more", "DROP SCHEMA more"
    rig.transaction(
        "SET search_path = more, public",
        make,
        ddl(make),
        "CREATE TABLE u (id integer PRIMARY KEY)",
        ddl("CREATE TABLE u (id integer PRIMARY KEY)"),
    )
    rig.run()
    rig.write("INSERT INTO more.u VALUES (1)")
    rig.run()
    assert rig.rows("SELECT * FROM more.u") == [(1,)]
    rig.transaction("SET search_path = more, public", ddl("DROP TABLE u"), "DROP TABLE u", ddl(remove), remove)
    follow_the_rest(rig)


@gated
def test_an_earlier_version_s_function_is_told_and_replaced_with_its_grants(rig: Rig) -> None:
    with_two_schemas(rig)
    role = f"sender_{rig.rows('SELECT current_database()', side='source')[0][0]}"
    rig.write(
        "DROP FUNCTION parallel_apply.send_ddl", _FORMER, "REVOKE ALL ON FUNCTION parallel_apply.send_ddl FROM PUBLIC"
    )
    rig.write(
        f'CREATE ROLE "{role}"',
        f'GRANT EXECUTE ON FUNCTION parallel_apply.send_ddl TO "{role}"',
        f'GRANT USAGE ON SCHEMA "An app" TO "{role}"',
    )
    try:
        statement = _DOUBLED.replace(" t ", " public.t ")
        rig.transaction(statement, ddl(statement))
        follow_the_rest(rig)
        (told,) = [
            finding
            for finding in check_pipeline(rig.config, rig.source, rig.target).findings
            if finding.where == "parallel_apply.send_ddl"
        ]
        assert "install-ddl-capture` again" in told.note
        install(rig.source_dsn)
        assert not [
            one for one in check_pipeline(rig.config, rig.source, rig.target).findings if "send_ddl" in one.where
        ]
        rig.transaction("SET search_path = 'An app'", _DOUBLED, f'SET ROLE "{role}"', ddl(_DOUBLED))
        follow_the_rest(rig)
    finally:
        rig.write(f'DROP OWNED BY "{role}"', f'DROP ROLE "{role}"')


def test_earlier_versions_that_read_strings_as_the_session_does_are_told(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)")
    install(rig.source_dsn)
    for function, now, then in (
        ("capture_rewrite()", ' COLLATE "C"', ""),
        ("send_ddl(text, name[])", "standard_conforming_strings", "lc_messages"),
    ):
        (definition,) = rig.rows(
            f"SELECT pg_get_functiondef('parallel_apply.{function}'::regprocedure)", side="source"
        )[0]
        rig.write(definition.replace(now, then))

    def told() -> set[str]:
        findings = check_pipeline(rig.config, rig.source, rig.target).findings
        return {finding.where for finding in findings if "strings" in finding.what}

    assert told() == {"parallel_apply.capture_rewrite", "parallel_apply.send_ddl"}
    install(rig.source_dsn)
    assert told() == set()
