"""DDL that is sent behind statements that were not, before a row tells the target of those: it would find other tables,
nothing, or columns of other types there.
"""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.integration.migrations.sent_behind import (
    BACK,
    COMPUTE,
    SWAP,
    assert_same,
    columns_begun,
    renames_in,
    sent,
    tables_begun,
)
from tests.support.ddl_messages import ddl, install
from tests.support.migrated_table import recopied
from tests.support.rig import Rig, execute, skip_as_the_hint_says
from tests.support.variants import gated

OTHERWISE = r"had another name at the source"


def test_a_table_that_was_archived_in_another_schema_is_not_altered_for_its_successor(rig: Rig) -> None:
    tables_begun(rig)
    rig.write("CREATE SCHEMA archive", "ALTER TABLE t SET SCHEMA archive", "CREATE TABLE t (id integer, v numeric)")
    rig.transaction(*sent(COMPUTE))
    with pytest.raises(FatalError, match=OTHERWISE) as refused:
        rig.run()
    assert 'SET SCHEMA "archive" at the target, then run again' in str(refused.value)
    execute(rig.target_dsn, "CREATE SCHEMA archive", "ALTER TABLE t SET SCHEMA archive")
    with pytest.raises(FatalError, match=r'"t" does not exist.*Hint: Make the table at the target'):
        rig.run()
    execute(rig.target_dsn, "CREATE TABLE t (id integer, v numeric)")
    rig.run()
    rig.write("INSERT INTO archive.t VALUES (2, 2.5)")
    rig.run()
    assert_same(rig, "archive.t")


MISSED = {
    "a table": (["ALTER TABLE t RENAME TO u"], "ALTER TABLE IF EXISTS u ALTER v TYPE numeric USING v * 100"),
    "a column": (
        ["ALTER TABLE t RENAME v TO w"],
        "DO $$ BEGIN IF EXISTS (SELECT FROM pg_attribute WHERE attname = 'w') THEN "
        "ALTER TABLE t ALTER w TYPE numeric USING w * 100; END IF; END $$",
    ),
}


@gated
@pytest.mark.parametrize("case", MISSED)
def test_a_statement_that_would_find_nothing_here_waits_for_the_rename(rig: Rig, case: str) -> None:
    tables_begun(rig)
    before, statement = MISSED[case]
    rig.write(*before)
    rig.transaction(*sent(statement))
    with pytest.raises(FatalError, match=OTHERWISE) as refused:
        rig.run()
    execute(rig.target_dsn, *renames_in(refused.value))
    rig.run()
    name = "u" if case == "a table" else "t"
    rig.write(f"INSERT INTO {name} VALUES (2, 2.5)")
    rig.run()
    assert_same(rig, name)


@gated
def test_a_function_may_alter_a_table_that_it_does_not_name_in_the_text(rig: Rig) -> None:
    tables_begun(rig)
    drop = "ALTER TABLE t DROP COLUMN v"
    rig.transaction(*sent(f"CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $f$ BEGIN {drop}; END $f$"))
    rig.run()
    rig.write(*SWAP)
    rig.transaction(*sent("SELECT f()"))
    with pytest.raises(FatalError, match=rf"{OTHERWISE}.*: SELECT f\(\) ") as refused:
        rig.run()
    execute(rig.target_dsn, *renames_in(refused.value))
    rig.run()
    rig.write("INSERT INTO t VALUES (2)", "INSERT INTO t_old VALUES (2, 2.5)")
    rig.run()
    assert_same(rig, "t", "t_old")


@gated
@pytest.mark.parametrize("are_sent", [True, False])
def test_schemas_that_pass_on_their_names_take_their_tables_with_them(rig: Rig, are_sent: bool) -> None:
    install(rig.source_dsn)
    for schema in ("a", "b"):
        rig.both(f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.t (id integer PRIMARY KEY, v numeric)")
    rig = rig.having(tables=TablePatterns(include=("*",)))
    rig.prepare()
    rig.write("INSERT INTO a.t VALUES (1, 1)", "INSERT INTO b.t VALUES (1, 2)")
    rig.run()
    renames = ("ALTER SCHEMA a RENAME TO x", "ALTER SCHEMA b RENAME TO a")
    rig.transaction(*(sent(*renames) if are_sent else renames))
    rig.transaction(*sent("ALTER TABLE a.t ALTER v TYPE numeric USING v * 100"))
    if not are_sent:
        with pytest.raises(FatalError, match=rf"target: a\.t, b\.t {OTHERWISE}"):
            rig.run()
        execute(rig.target_dsn, *renames)
    rig.run()
    rig.write("INSERT INTO a.t VALUES (2, 2)", "INSERT INTO x.t VALUES (2, 2)")
    rig.run()
    assert_same(rig, "a.t", "x.t")


@gated
def test_names_that_are_exchanged_back_within_the_transaction_are_compared_behind_each_statement(rig: Rig) -> None:
    tables_begun(rig)
    rig.transaction(*SWAP, *sent("ALTER TABLE t ADD w integer DEFAULT 5"), *BACK, *sent("CREATE INDEX ON t (v)"))
    with pytest.raises(FatalError, match=OTHERWISE):
        rig.run()


TYPES = {
    "another column": (["ALTER TABLE t ALTER a TYPE numeric"], "ALTER TABLE t ALTER b TYPE numeric USING a / 2"),
    "one that was sent": (["ALTER TABLE t ALTER c TYPE numeric"], "ALTER TABLE t ALTER b TYPE numeric USING c / 2"),
    "a computed one": (
        ["ALTER TABLE t ALTER g SET EXPRESSION AS (id * 3)"],
        "ALTER TABLE t ALTER b TYPE bigint USING g",
    ),
    "a row as a whole": (
        ["ALTER TABLE t ALTER a TYPE numeric"],
        "ALTER TABLE t ALTER b TYPE integer USING length(';' || $$;$$ || to_jsonb(t)::text)",
    ),
    "a row with a column that is gone": (
        ["ALTER TABLE t DROP d"],
        "ALTER TABLE t ALTER b TYPE integer USING length(to_jsonb(t)::text)",
    ),
    "a row with a computed column that is gone": (
        ["ALTER TABLE t DROP g"],
        "ALTER TABLE t ALTER b TYPE integer USING length(to_jsonb(t)::text)",
    ),
    "a row with a column that is not there": (
        ["ALTER TABLE t ADD e numeric DEFAULT 5"],
        "ALTER TABLE t ALTER b TYPE integer USING length(to_jsonb(public.t.*)::text)",
    ),
    "an expression": (
        ["ALTER TABLE t ALTER a TYPE numeric"],
        "ALTER TABLE t ALTER g SET EXPRESSION AS (a / 2 * 2)",
    ),
}


@gated
@pytest.mark.parametrize("case", TYPES)
def test_a_using_that_reads_a_column_of_another_type_is_refused(rig: Rig, case: str) -> None:
    columns_begun(rig)
    rig.transaction(*sent("ALTER TABLE t ADD g integer GENERATED ALWAYS AS (id * 2) STORED, ADD d integer"))
    rig.write("INSERT INTO t (id, a, b) VALUES (2, 8, 80)")
    rig.transaction(*sent("ALTER TABLE t ADD c integer DEFAULT 7"))
    rig.run()
    before, statement = TYPES[case]
    rig.write(*before)
    behind = ["ALTER TABLE t ALTER g DROP EXPRESSION"] if case == "an expression" else []
    rig.transaction(*sent(statement, *behind))
    with pytest.raises(FatalError, match=r"compute other values at the target: \w of public\.t was ") as refused:
        rig.run()
    recopied(rig, *(["ALTER TABLE t ALTER g DROP EXPRESSION", *before] if behind else [*before, statement]))
    skip_as_the_hint_says(rig, refused.value)
    rig.write("INSERT INTO t (id, a, b, c) VALUES (3, 9, 90, 8)")
    rig.run()
    assert_same(rig, "t")


@gated
def test_a_using_reads_what_the_computed_columns_that_it_reads_do(rig: Rig) -> None:
    columns_begun(rig)
    rig.write("ALTER TABLE t ALTER a TYPE numeric")
    rig.transaction(*sent("ALTER TABLE t ADD g integer GENERATED ALWAYS AS (a / 2) STORED"))
    rig.transaction(*sent("ALTER TABLE t ALTER b TYPE bigint USING g"))
    with pytest.raises(FatalError, match=r"compute other values at the target: a of public\.t was numeric"):
        rig.run()


ALL_SENT = {
    "another expression": "ALTER TABLE t ALTER g SET EXPRESSION AS (a * 3)",
    "another type": "ALTER TABLE t ALTER g TYPE bigint",
    "a new column": "ALTER TABLE t DROP g, ADD g integer GENERATED ALWAYS AS (a * 3) STORED",
}


@gated
@pytest.mark.parametrize(("case", "at_once"), [*((case, True) for case in ALL_SENT), ("another expression", False)])
def test_a_using_may_read_a_column_that_is_computed_as_a_statement_says_that_was_sent(
    rig: Rig, case: str, at_once: bool
) -> None:
    install(rig.source_dsn)
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, a integer, b integer, g integer GENERATED ALWAYS AS (a) STORED)")
    rig.prepare()
    rig.write("INSERT INTO t (id, a, b) VALUES (1, 7, 70)")
    rig.run()
    statements = ALL_SENT[case], "ALTER TABLE t ALTER b TYPE bigint USING g + b"
    for one in [statements] if at_once else [[text] for text in statements]:
        rig.transaction(*sent(*one))
    rig.run()
    rig.write("INSERT INTO t (id, a, b) VALUES (2, 8, 80)")
    rig.run()
    assert_same(rig, "t")


HARMLESS = {
    "another table was renamed": (
        ["ALTER TABLE t_new RENAME TO u"],
        ["CREATE INDEX ON t (v)", "CREATE VIEW w AS SELECT v FROM t"],
    ),
    "another column was renamed": (["ALTER TABLE t RENAME v TO w"], ["CREATE INDEX ON t USING btree (id)"]),
    "its type was changed": (
        ["ALTER TABLE t ALTER v TYPE numeric(9,4)"],
        ["CREATE INDEX ON t USING btree (v)", "ALTER TABLE t ALTER id TYPE bigint USING id * 2"],
    ),
    "a schema was renamed": (["CREATE SCHEMA a", "ALTER SCHEMA a RENAME TO b"], [COMPUTE]),
}


@gated
@pytest.mark.parametrize("case", HARMLESS)
def test_what_a_statement_does_not_read_or_alter_may_be_told_later(rig: Rig, case: str) -> None:
    tables_begun(rig)
    before, statements = HARMLESS[case]
    rig.write(*before)
    for one in statements:
        rig.transaction(*sent(one))
    rig.run()
    rig.write("INSERT INTO t VALUES (3, 3.5)")
    rig.run()
    assert_same(rig, "t")


@gated
def test_statements_that_are_sent_together_are_compared_together(rig: Rig) -> None:
    tables_begun(rig)
    statements = [*SWAP, "ALTER TABLE t ADD w integer DEFAULT 5", "ALTER TABLE t_old DROP COLUMN v"]
    rig.transaction(*statements, *map(ddl, statements))
    rig.run()
    rig.write("INSERT INTO t (id) VALUES (3)", "INSERT INTO t_old VALUES (3)")
    rig.run()
    assert_same(rig, "t", "t_old")


@gated
def test_a_row_that_is_read_as_a_whole_has_the_names_of_all_columns(rig: Rig) -> None:
    columns_begun(rig)
    rig.write("ALTER TABLE t RENAME a TO x")
    rig.transaction(*sent("ALTER TABLE t ALTER b TYPE integer USING (to_jsonb(t) ->> 'x')::integer * length(t::text)"))
    with pytest.raises(FatalError, match=OTHERWISE) as refused:
        rig.run()
    execute(rig.target_dsn, *renames_in(refused.value))
    rig.run()
    rig.write("INSERT INTO t VALUES (2, 8, 80)")
    rig.run()
    assert_same(rig, "t")


INHERITED = {
    "types": (["ALTER TABLE p ALTER a TYPE numeric"], "ALTER TABLE p ALTER b TYPE numeric USING a / 2"),
    "names": (
        ["ALTER TABLE p RENAME a TO x", "ALTER TABLE p RENAME b TO a", "ALTER TABLE p RENAME x TO b"],
        "ALTER TABLE p ALTER a TYPE integer USING a * 2",
    ),
}


@gated
@pytest.mark.parametrize("case", INHERITED)
def test_a_statement_may_alter_a_table_by_one_that_it_inherits_from_and_nobody_follows(rig: Rig, case: str) -> None:
    install(rig.source_dsn)
    rig.both("CREATE TABLE p (id integer, a integer, b integer)", "CREATE TABLE c (PRIMARY KEY (id)) INHERITS (p)")
    rig = rig.having(tables=TablePatterns(include=("public.c",)))
    rig.prepare()
    rig.write("INSERT INTO c VALUES (1, 7, 70)")
    rig.run()
    before, statement = INHERITED[case]
    rig.write(*before)
    rig.transaction(*sent(statement))
    rig.write("INSERT INTO c VALUES (2, 7, 70)")
    with pytest.raises(FatalError, match=r"of public\.c (was|had)") as refused:
        rig.run()
    if case == "names":
        execute(rig.target_dsn, *renames_in(refused.value))
    else:
        recopied(rig, *before, statement, table="c")
        skip_as_the_hint_says(rig, refused.value)
    rig.run()
    assert_same(rig, "c")
