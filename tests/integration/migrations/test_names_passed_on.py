"""DDL that is sent behind a rename that was not, before a row tells the target of that: it meets another table, or
column, of the name there.
"""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.admin.purge import purge_log
from airflow_parallel_apply.pipeline.config import DdlPolicy, TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
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
from tests.support.variants import GATED, gated, variants

SWAPPED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "a column is dropped": (("ALTER TABLE t DROP COLUMN v",), ()),
    "values are cut": (("ALTER TABLE t ALTER v TYPE integer",), ()),
    "values are computed": ((COMPUTE,), ()),
    "a column is added": (("ALTER TABLE t ADD w integer DEFAULT 5",), ()),
    "the other one is altered behind it": ((COMPUTE,), ("ALTER TABLE t_old ADD z integer DEFAULT 4",)),
}
"""The statements that are sent in one transaction, and what is done behind it and not sent."""
EXCHANGED = ("ALTER TABLE t RENAME a TO x", "ALTER TABLE t RENAME b TO a", "ALTER TABLE t RENAME x TO b")
COLUMNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "two exchanged their names": (EXCHANGED, ()),
    "another one got the name": (("ALTER TABLE t RENAME a TO b2", "ALTER TABLE t ADD a integer DEFAULT 5"), ()),
    "it was dropped, and another one made": (("ALTER TABLE t DROP a", "ALTER TABLE t ADD a integer DEFAULT 5"), ()),
    "the one that got the name is gone again": (EXCHANGED[:2], ("ALTER TABLE t DROP a",)),
}
"""Statements that are not sent, before the one that is and behind it."""


@pytest.mark.parametrize("case", variants(SWAPPED, gated={*SWAPPED} - {"values are computed"}))
@pytest.mark.parametrize("is_written", [False, pytest.param(True, marks=GATED)])
def test_a_statement_for_a_table_that_took_another_one_s_name_spares_that_one(
    rig: Rig, case: str, is_written: bool
) -> None:
    statements, behind = SWAPPED[case]
    tables_begun(rig)
    purge_log(rig.config.log_url, [rig.target])
    rig.write(*SWAP)
    rig.transaction(*sent(*statements))
    rig.write(*behind)
    if is_written:
        rig.write("INSERT INTO t (id) VALUES (2)")
    with pytest.raises(FatalError, match=r"target: public\.t, public\.t_new had another name at the source") as refused:
        rig.run()
    execute(rig.target_dsn, *renames_in(refused.value))
    rig.run()
    rig.write("INSERT INTO t (id) VALUES (3)", "INSERT INTO t_old (id, v) VALUES (3, 3.5)")
    rig.run()
    assert_same(rig, "t", "t_old")


@gated
def test_a_table_that_another_one_s_name_was_given_to_is_dropped_in_its_place(rig: Rig) -> None:
    tables_begun(rig)
    rig.write(*SWAP)
    rig.transaction(*sent("DROP TABLE t"))
    with pytest.raises(FatalError, match=r"target: public\.t, public\.t_new had another name at the source") as refused:
        rig.run()
    execute(rig.target_dsn, *renames_in(refused.value))
    rig.run()
    rig.write("INSERT INTO t_old VALUES (3, 3.5)")
    rig.run()
    assert_same(rig, "t_old")
    assert rig.rows("SELECT to_regclass('t') IS NULL AND to_regclass('t_new') IS NULL") == [(True,)]


@gated
@pytest.mark.parametrize(
    "before", [["INSERT INTO t VALUES (2, 2)"], sent("ALTER TABLE t ALTER v TYPE numeric USING v + 1")]
)
def test_what_comes_before_it_in_its_transaction_has_the_former_names_so_what_is_concerned_is_copied(
    rig: Rig, before: list[str]
) -> None:
    tables_begun(rig)
    rig.transaction(*before, *SWAP, *sent("ALTER TABLE t DROP COLUMN v"))
    with pytest.raises(FatalError, match="had another name") as refused:
        rig.run()
    assert "then run again" not in str(refused.value)
    execute(rig.target_dsn, *SWAP, "ALTER TABLE t DROP COLUMN v")
    recopy_tables(
        rig.config, rig.source, rig.target, [("public", "t"), ("public", "t_old")], report=lambda progress: None
    )
    skip_as_the_hint_says(rig, refused.value)
    rig.write("INSERT INTO t VALUES (3)", "INSERT INTO t_old VALUES (3, 3.5)")
    rig.run()
    assert_same(rig, "t", "t_old")


@gated
@pytest.mark.parametrize("case", COLUMNS)
def test_a_statement_for_a_column_that_took_another_one_s_name_spares_that_one(rig: Rig, case: str) -> None:
    before, behind = COLUMNS[case]
    columns_begun(rig)
    rig.write(*before)
    rig.transaction(*sent("ALTER TABLE t ALTER a TYPE integer USING a * 100"))
    rig.write(*behind, "INSERT INTO t (id) VALUES (2)")
    with pytest.raises(FatalError, match=r"target: a.* of public\.t had another name(?s:.*)recopy") as refused:
        rig.run()
    lacking = ["ALTER TABLE t ADD b2 integer"] if case == "another one got the name" else []
    lacking = ["ALTER TABLE t RENAME a TO x", "ALTER TABLE t DROP b"] if behind else lacking
    recopied(rig, *lacking)
    skip_as_the_hint_says(rig, refused.value)
    rig.run()
    assert_same(rig, "t")


@gated
def test_columns_that_exchanged_names_are_renamed_as_the_hint_says(rig: Rig) -> None:
    columns_begun(rig)
    rig.write(*EXCHANGED)
    rig.transaction(*sent("ALTER TABLE t ALTER a TYPE integer USING a * 100"))
    rig.write("INSERT INTO t VALUES (2, 8)")
    with pytest.raises(FatalError, match="had another name") as refused:
        rig.run()
    execute(rig.target_dsn, *renames_in(refused.value))
    rig.run()
    assert_same(rig, "t")


@gated
@pytest.mark.parametrize(
    ("statement", "lacking"),
    [
        ("DROP COLUMN a", ("DROP b", "RENAME a TO b")),
        ("DROP a, ADD a integer DEFAULT 7", ("DROP b", "RENAME a TO b", "ADD a integer")),
        ("RENAME a TO c", ("RENAME b TO c", "RENAME a TO b")),
    ],
)
def test_columns_whose_names_the_statement_changes_are_copied(
    rig: Rig, statement: str, lacking: tuple[str, ...]
) -> None:
    columns_begun(rig)
    rig.write(*EXCHANGED)
    rig.transaction(*sent(f"ALTER TABLE t {statement}"))
    rig.write("INSERT INTO t VALUES (2, 8)")
    with pytest.raises(FatalError, match="had another name") as refused:
        rig.run()
    assert "then run again" not in str(refused.value)
    recopied(rig, *(f"ALTER TABLE t {one}" for one in lacking))
    skip_as_the_hint_says(rig, refused.value)
    rig.run()
    assert_same(rig, "t")


PASSED_ON = ("ALTER TABLE t RENAME a TO a_old", "ALTER TABLE t RENAME b TO a")


@gated
@pytest.mark.parametrize("also", [(), ("ALTER TABLE t ADD a integer DEFAULT 3",)])
@pytest.mark.parametrize("is_written", [False, True])
def test_a_column_that_a_statement_would_drop_for_another_one_stays(
    rig: Rig, also: tuple[str, ...], is_written: bool
) -> None:
    columns_begun(rig)
    rig.write(*PASSED_ON)
    rig.transaction(*sent("ALTER TABLE t DROP COLUMN a", *also))
    if is_written:
        rig.write("INSERT INTO t VALUES (2, 8)")
    with pytest.raises(FatalError, match="had another name") as refused:
        rig.run()
    assert rig.rows("SELECT a, b FROM t WHERE id = 1") == [(7, 70)]
    recopied(rig, "ALTER TABLE t RENAME a TO a_old", "ALTER TABLE t DROP b", *also)
    skip_as_the_hint_says(rig, refused.value)
    rig.run()
    assert_same(rig, "t")


@gated
def test_who_runs_a_refused_statement_by_hand_is_told_of_other_names(rig: Rig) -> None:
    tables_begun(rig)
    rig = rig.having(ddl=DdlPolicy.REFUSE)
    rig.write(*SWAP)
    rig.transaction(*sent(COMPUTE))
    rig.write("INSERT INTO t (id) VALUES (2)")
    with pytest.raises(
        FatalError, match=r"by then public\.t was public\.t_old, public\.t_new was public\.t at the source"
    ):
        rig.run()


@gated
def test_a_column_that_was_sent_and_taken_back_unsent_is_none_that_a_statement_means(rig: Rig) -> None:
    columns_begun(rig)
    rig.transaction(*sent("ALTER TABLE t RENAME a TO a_old"), *sent("ALTER TABLE t ADD a integer DEFAULT 1"))
    rig.run()
    rig.write("ALTER TABLE t DROP a", "ALTER TABLE t RENAME a_old TO a")
    rig.transaction(*sent("ALTER TABLE t ALTER a TYPE bigint"))
    with pytest.raises(FatalError, match=r"target: a_old of public\.t had another name") as refused:
        rig.run()
    recopied(rig, "ALTER TABLE t DROP a", "ALTER TABLE t RENAME a_old TO a", "ALTER TABLE t ALTER a TYPE bigint")
    skip_as_the_hint_says(rig, refused.value)
    rig.write("INSERT INTO t VALUES (2, 8, 80)")
    rig.run()
    assert_same(rig, "t")


@gated
def test_a_schema_s_new_name_is_its_tables(rig: Rig) -> None:
    install(rig.source_dsn)
    rig.both("CREATE SCHEMA a", "CREATE TABLE a.t (id integer PRIMARY KEY, v integer)")
    rig = rig.having(tables=TablePatterns(include=("*",)))
    rig.prepare()
    rig.write("INSERT INTO a.t VALUES (1, 1)")
    rig.run()
    rename = "ALTER SCHEMA a RENAME TO b"
    rig.transaction(rename, ddl(rename))
    rig.transaction(*sent("ALTER TABLE b.t RENAME v TO w"), *sent("ALTER TABLE b.t ADD v integer DEFAULT 3"))
    rig.write("INSERT INTO b.t VALUES (2, 2, 2)")
    rig.run()
    assert_same(rig, "b.t")


@gated
def test_a_using_that_is_sent_for_a_type_which_was_not_is_copied(rig: Rig) -> None:
    columns_begun(rig)
    rig.write("ALTER TABLE t ALTER a TYPE numeric")
    rig.transaction(*sent("ALTER TABLE t ALTER a TYPE integer USING a / 2"))
    rig.write("INSERT INTO t VALUES (2, 8, 80)")
    with pytest.raises(FatalError, match=r"a \(integer, numeric, integer\)"):
        rig.run()
    recopied(rig)
    rig.run()
    assert_same(rig, "t")


@gated
@pytest.mark.parametrize("is_run", [False, True])
def test_names_that_are_exchanged_back_and_not_sent_are_compared_as_well(rig: Rig, is_run: bool) -> None:
    tables_begun(rig)
    rig.transaction(*sent(*SWAP))
    if is_run:
        rig.run()
    rig.write(*BACK)
    rig.transaction(*sent(COMPUTE))
    with pytest.raises(FatalError, match="had another name at the source") as refused:
        rig.run()
    execute(rig.target_dsn, *renames_in(refused.value))
    rig.run()
    rig.write("INSERT INTO t VALUES (3, 3)", "INSERT INTO t_new VALUES (3, 3.5)")
    rig.run()
    assert_same(rig, "t", "t_new")


@gated
def test_rows_between_the_statements_of_a_transaction_do_not_hide_what_the_first_one_meets(rig: Rig) -> None:
    tables_begun(rig)
    rig.transaction(
        *SWAP,
        *sent("ALTER TABLE t ALTER v TYPE integer"),
        "INSERT INTO t VALUES (2, 2)",
        "INSERT INTO t_old VALUES (2, 2.5)",
        *sent("CREATE INDEX ON t (v)"),
    )
    with pytest.raises(FatalError, match="had another name at the source") as refused:
        rig.run()
    execute(rig.target_dsn, *SWAP, "ALTER TABLE t ALTER v TYPE integer")
    names = [("public", "t"), ("public", "t_old")]
    recopy_tables(rig.config, rig.source, rig.target, names, report=lambda progress: None)
    skip_as_the_hint_says(rig, refused.value)
    assert_same(rig, "t", "t_old")


AS_SENT = {
    "another table's columns exchanged their names before it": [
        ["ALTER TABLE t_new RENAME v TO w", "ALTER TABLE t_new ADD v numeric"],
        sent("CREATE INDEX ON t (v)"),
    ],
    "a column's name is passed on behind it": [
        sent("ALTER TABLE t ALTER v TYPE text"),
        sent("ALTER TABLE t RENAME v TO v_old"),
        sent("ALTER TABLE t ADD v text DEFAULT 'x'"),
    ],
    "it is passed on behind it and not sent": [
        sent("ALTER TABLE t ALTER v TYPE text"),
        ["ALTER TABLE t RENAME v TO v_old", "ALTER TABLE t ADD v text DEFAULT 'x'"],
    ],
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
