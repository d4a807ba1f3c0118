"""DDL that is sent behind a rename that was not, before a row tells the target of that: it meets another table, or
column, of the name there.
"""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.ddl_messages import ddl, install
from tests.support.migrated_table import recopied
from tests.support.rig import Rig, execute, skip_as_the_hint_says
from tests.support.variants import GATED, gated, variants

SWAP = ("ALTER TABLE t RENAME TO t_old", "ALTER TABLE t_new RENAME TO t")
SWAPPED = {
    "a column is dropped": "ALTER TABLE t DROP COLUMN v",
    "values are cut": "ALTER TABLE t ALTER v TYPE integer",
    "values are computed": "ALTER TABLE t ALTER v TYPE numeric USING v * 100",
}
COLUMNS = {
    "two exchanged their names": (
        "ALTER TABLE t RENAME a TO x",
        "ALTER TABLE t RENAME b TO a",
        "ALTER TABLE t RENAME x TO b",
    ),
    "another one got the name": ("ALTER TABLE t RENAME a TO b2", "ALTER TABLE t ADD a integer DEFAULT 5"),
    "it was dropped, and another one made": ("ALTER TABLE t DROP a", "ALTER TABLE t ADD a integer DEFAULT 5"),
}


def sent(*statements: str) -> list[str]:
    return [text for one in statements for text in (one, ddl(one))]


def assert_same(rig: Rig, *tables: str) -> None:
    for table in tables:
        query = f"SELECT to_jsonb(r)::text FROM {table} r ORDER BY 1"
        assert rig.rows(query) == rig.rows(query, side="source")


def tables_begun(rig: Rig) -> None:
    install(rig.source_dsn)
    rig.both(*(f"CREATE TABLE {name} (id integer PRIMARY KEY, v numeric)" for name in ("t", "t_new")))
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 1.5)", "INSERT INTO t_new VALUES (1, 2.5)")
    rig.run()


def columns_begun(rig: Rig) -> None:
    install(rig.source_dsn)
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, a integer, b integer)")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 7, 70)")
    rig.run()


@pytest.mark.parametrize("statement", variants(SWAPPED, gated=["values are cut", "values are computed"]))
@pytest.mark.parametrize("is_written", [False, pytest.param(True, marks=GATED)])
def test_a_statement_for_a_table_that_took_another_one_s_name_spares_that_one(
    rig: Rig, statement: str, is_written: bool
) -> None:
    tables_begun(rig)
    rig.write(*SWAP)
    rig.transaction(*sent(SWAPPED[statement]))
    if is_written:
        rig.write("INSERT INTO t (id) VALUES (2)")
    with pytest.raises(FatalError, match=r"alter v of public\.t here, and altered something else there") as refused:
        rig.run()
    renames = re.search(r"Run (ALTER TABLE .*?) at the target, then run again", str(refused.value))
    assert renames is not None
    execute(rig.target_dsn, *renames[1].split("; "))
    rig.run()
    rig.write("INSERT INTO t (id) VALUES (3)", "INSERT INTO t_old VALUES (3, 3.5)")
    rig.run()
    assert_same(rig, "t", "t_old")


@gated
@pytest.mark.parametrize("columns", COLUMNS)
def test_a_statement_for_a_column_that_took_another_one_s_name_spares_that_one(rig: Rig, columns: str) -> None:
    columns_begun(rig)
    rig.write(*COLUMNS[columns])
    rig.transaction(*sent("ALTER TABLE t ALTER a TYPE integer USING a * 100"))
    rig.write("INSERT INTO t (id, a) VALUES (2, 8)")
    with pytest.raises(FatalError, match=r"alter a of public\.t here(?s:.*)recopy") as refused:
        rig.run()
    lacking = ["ALTER TABLE t ADD b2 integer"] if columns == "another one got the name" else []
    recopied(rig, *lacking)
    skip_as_the_hint_says(rig, refused.value)
    rig.run()
    assert_same(rig, "t")


@gated
def test_a_column_that_took_the_name_of_one_which_a_message_drops_stays(rig: Rig) -> None:
    columns_begun(rig)
    rig.write(*COLUMNS["two exchanged their names"])
    rig.transaction(*sent("ALTER TABLE t DROP COLUMN a"))
    rig.write("INSERT INTO t VALUES (2, 8)")
    with pytest.raises(FatalError, match=r"alter a of public\.t here") as refused:
        rig.run()
    renames = re.search(r"Run (ALTER TABLE .*?) at the target, then run again", str(refused.value))
    assert renames is not None
    execute(rig.target_dsn, *renames[1].split("; "))
    rig.run()
    assert_same(rig, "t")


@gated
def test_a_using_that_is_sent_for_a_type_which_was_not_is_copied(rig: Rig) -> None:
    columns_begun(rig)
    rig.write("ALTER TABLE t ALTER a TYPE numeric")
    rig.transaction(*sent("ALTER TABLE t ALTER a TYPE integer USING a / 2"))
    rig.write("INSERT INTO t VALUES (2, 8, 80)")
    with pytest.raises(FatalError, match=r"a \(integer, numeric, integer\)"):
        rig.run()
    recopied(rig)
    with pytest.raises(FatalError, match=r"before public\.t was copied anew") as refused:
        rig.run()
    skip_as_the_hint_says(rig, refused.value)
    rig.run()
    assert_same(rig, "t")


AS_SENT = {
    "a name is passed on behind it": [sent("ALTER TABLE t DROP COLUMN v"), SWAP],
    "the renames are sent, too": [sent(*SWAP), sent("ALTER TABLE t ALTER v TYPE integer")],
    "it is renamed behind it": [
        sent("ALTER TABLE t ALTER v TYPE numeric USING v * 100"),
        ["ALTER TABLE t RENAME TO u"],
    ],
    "a column goes with its type": [
        sent("CREATE DOMAIN d AS text"),
        sent("ALTER TABLE t ADD w d"),
        sent("DROP DOMAIN d CASCADE"),
    ],
}


@gated
@pytest.mark.parametrize("steps", AS_SENT)
def test_what_the_source_did_to_the_same_table_is_done(rig: Rig, steps: str) -> None:
    tables_begun(rig)
    for one in AS_SENT[steps]:
        rig.transaction(*one)
    rig.run()
    query = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"
    names = [name for (name,) in rig.rows(query, side="source")]
    rig.write(*(f"INSERT INTO {name} (id) VALUES (3)" for name in names))
    rig.run()
    assert_same(rig, *names)
