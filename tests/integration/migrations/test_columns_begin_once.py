"""A new definition is followed once, where its first row is: there all rows are older than its new columns."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.check.check import check_pipeline
from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.integration.migrations.renaming import forget
from tests.support.rig import Rig, execute, skip_as_the_hint_says
from tests.support.variants import gated, variants


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, a text, b text)", "CREATE TABLE u (id integer PRIMARY KEY)")
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, 'a' || i, i FROM generate_series(1, 20) i", "INSERT INTO u VALUES (1)")
    rig.run()
    return rig


def recopy(rig: Rig) -> None:
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)


def assert_equal(rig: Rig) -> None:
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
@pytest.mark.parametrize("way", variants(["skip", "recopy"], seldom=["recopy"]))
def test_another_tables_redefinition_does_not_bring_it_up_again(rig: Rig, way: str) -> None:
    change = "ALTER TABLE t ADD COLUMN c uuid DEFAULT gen_random_uuid()"
    rig.write(change, "INSERT INTO t VALUES (21, 'x')")
    with pytest.raises(FatalError, match=r"column c of public\.t was added.*ddl=skip") as told:
        rig.run()
    assert "the statement that the source ran" not in str(told.value)
    execute(rig.target_dsn, "ALTER TABLE t ADD COLUMN c uuid")
    if way == "skip":
        for number, value in rig.rows("SELECT id, c FROM t WHERE id < 21", side="source"):
            execute(rig.target_dsn, f"UPDATE t SET c = '{value}' WHERE id = {number}")
        rig.having(ddl=DdlPolicy.SKIP).run()
    else:
        recopy(rig)
        rig.run()
    rig.write("ALTER TABLE u ADD COLUMN v integer")
    rig.transaction("INSERT INTO t VALUES (22, 'y')", "INSERT INTO u VALUES (2, 2)")
    rig.run()
    assert_equal(rig)


@gated
def test_a_fill_is_given_before_the_first_row_and_never_to_later_ones(rig: Rig) -> None:
    change = "ALTER TABLE t ADD COLUMN c integer DEFAULT 5"
    rig.transaction(change, rig.ddl(change))
    rig.write("INSERT INTO t VALUES (21, 'x', 'y', 7)", "ALTER TABLE u ADD COLUMN v integer")
    rig.transaction("UPDATE t SET a = 'z' WHERE id = 3", "INSERT INTO u VALUES (2, 2)")
    rig.run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize(
    "default",
    variants(
        ["timestamptz DEFAULT now()", "integer DEFAULT 5", "json DEFAULT '{ }'"],
        seldom=["timestamptz DEFAULT now()", "integer DEFAULT 5"],
    ),
)
def test_sent_ddl_that_makes_other_values_than_the_sources_is_corrected(rig: Rig, default: str) -> None:
    sent = f"ALTER TABLE t ADD COLUMN c {default.replace('5', '6').replace('{ }', '{}')}"
    rig.transaction(f"ALTER TABLE t ADD COLUMN c {default}", rig.ddl(sent))
    rig.write("INSERT INTO t VALUES (21, 'x')", "DELETE FROM t WHERE id = 4")
    rig.run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize(
    "default",
    variants(
        ["uuid DEFAULT gen_random_uuid()", "bigint GENERATED ALWAYS AS IDENTITY"],
        seldom=["uuid DEFAULT gen_random_uuid()"],
    ),
)
def test_sent_ddl_that_makes_a_value_for_each_row_stops_and_goes_on_with_a_copy(rig: Rig, default: str) -> None:
    change = f"ALTER TABLE t ADD COLUMN c {default}"
    rig.transaction(change, rig.ddl(change))
    rig.write("DELETE FROM t WHERE id = 4")
    with pytest.raises(FatalError, match=r"column c of public\.t was added .*(?s:.*)recopy .*--table public\.t"):
        rig.run()
    recopy(rig)
    rig.run()
    assert_equal(rig)


@gated
def test_a_column_made_by_hand_without_its_fill_stops_the_run_until_it_has_it(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.REFUSE)
    rig.write("ALTER TABLE t ADD COLUMN c integer DEFAULT 5", "INSERT INTO t VALUES (21, 'x', 'y', 7)")
    execute(rig.target_dsn, "ALTER TABLE t ADD COLUMN c integer")
    with pytest.raises(FatalError, match=r"c of public\.t was added as integer and holds .*5.*(?s:.*)UPDATE") as told:
        rig.run()
    execute(rig.target_dsn, str(told.value).split("rows are the source's (")[1].split("), then run again")[0])
    rig.run()
    assert_equal(rig)


@gated
def test_a_column_that_the_target_had_with_another_type_holds_the_sources_values_in_older_rows(rig: Rig) -> None:
    execute(rig.target_dsn, "ALTER TABLE t ADD COLUMN c integer DEFAULT 7, ADD COLUMN d integer")
    rig.write("ALTER TABLE t ADD COLUMN c text, ADD COLUMN d text DEFAULT '5'", "INSERT INTO t (id) VALUES (21)")
    rig.run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize(
    ("there", "here"), [("varchar(9)", "timestamptz DEFAULT '2024-02-29'"), ("integer DEFAULT 7", "text DEFAULT 'x'")]
)
def test_a_column_whose_type_at_the_target_does_not_hold_what_older_rows_have_goes_on_with_the_printed_command(
    rig: Rig, there: str, here: str
) -> None:
    execute(rig.target_dsn, f"ALTER TABLE t ADD COLUMN c {there}")
    rig.write(f"ALTER TABLE t ADD COLUMN c {here}", "INSERT INTO t (id) VALUES (21)")
    with pytest.raises(FatalError) as stopped:
        rig.run()
    command = re.search(r"the source's \((ALTER TABLE .*)\), then run again", str(stopped.value))
    assert command is not None, stopped.value
    execute(rig.target_dsn, command[1])
    rig.run()
    assert_equal(rig)


@gated
def test_a_column_that_the_target_has_as_text_holds_what_the_source_prints(rig: Rig) -> None:
    """A cast to text would say `true` for `t`, and drop blanks."""
    execute(rig.target_dsn, "ALTER TABLE t ADD COLUMN c text, ADD COLUMN d text")
    rig.write("ALTER TABLE t ADD COLUMN c boolean DEFAULT true, ADD COLUMN d character(5) DEFAULT 'ab'")
    rig.write("INSERT INTO t (id) VALUES (21)")
    rig.run()
    assert rig.rows("SELECT DISTINCT c, d FROM t") == [("t", "ab   ")]
    assert_equal(rig)


def pasted(error: pytest.ExceptionInfo[FatalError], begin: str, end: str) -> list[str]:
    return str(error.value).split(begin)[1].split(end)[0].split("; ")


@gated
def test_columns_that_swapped_names_go_on_with_the_printed_commands(rig: Rig) -> None:
    """Their numbers tell, where they are known: see `test_columns_exchanged_ahead.py`."""
    swap = ["RENAME COLUMN a TO x", "RENAME COLUMN b TO a", "RENAME COLUMN x TO b"]
    rig.write(*(f"ALTER TABLE t {one}" for one in swap), "UPDATE t SET a = 'z' WHERE id = 3")
    forget(rig)
    with pytest.raises(FatalError, match=r"took each other's names.*run once with ddl=skip") as told:
        rig.run()
    execute(rig.target_dsn, *pasted(told, "at the target (", "), then"))
    # Another exchange is another one to be made.
    rig.write(*(f"ALTER TABLE t {one}" for one in swap), "UPDATE t SET b = 'z' WHERE id = 5")
    skip_as_the_hint_says(rig, told.value)
    forget(rig)
    with pytest.raises(FatalError, match=r"took each other's names.*run once with ddl=skip") as told:
        rig.run()
    execute(rig.target_dsn, *pasted(told, "at the target (", "), then"))
    skip_as_the_hint_says(rig, told.value)
    rig.run()
    assert_equal(rig)


@pytest.mark.parametrize("by_hand", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_column_that_takes_the_name_that_another_gives_up_is_followed(rig: Rig, by_hand: bool) -> None:
    chain = ["ALTER TABLE t RENAME COLUMN b TO c", "ALTER TABLE t RENAME COLUMN a TO b"]
    rig.write(*chain, "UPDATE t SET b = 'z' WHERE id = 3")
    if by_hand:
        with pytest.raises(FatalError, match=r"took each other's names.*then run again") as told:
            rig.having(ddl=DdlPolicy.REFUSE).run()
        execute(rig.target_dsn, *pasted(told, "at the target (", "), then"))
    rig.having(ddl=DdlPolicy.REFUSE if by_hand else DdlPolicy.APPLY).run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize("table", ["t", pytest.param("parted", marks=pytest.mark.long)])
def test_rows_of_the_same_transaction_are_older_than_a_column_that_was_made_by_hand(rig: Rig, table: str) -> None:
    rig = rig.having(ddl=DdlPolicy.REFUSE)
    rig.both(
        "CREATE TABLE parted (id integer PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (100)",
    )
    rig.run()
    rig.write("INSERT INTO parted VALUES (1)")
    rig.run()
    rig.transaction(
        f"INSERT INTO {table} (id) VALUES (90)",
        f"ALTER TABLE {table} ADD c integer DEFAULT 3",
        f"INSERT INTO {table} (id, c) VALUES (91, 4)",
    )
    with pytest.raises(FatalError, match=r"column c of public\.\w+ was added as integer") as told:
        rig.run()
    execute(rig.target_dsn, *pasted(told, "rows are the source's (", "), then"))
    rig.run()
    assert_equal(rig)


@gated
def test_rows_of_the_same_transaction_are_not_written_into_a_column_that_cannot_hold_its_value(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.REFUSE)
    execute(
        rig.target_dsn,
        "CREATE DOMAIN small AS integer CHECK (VALUE < 10)",
        "ALTER TABLE t ADD COLUMN c integer, ADD COLUMN d small",
    )
    rig.transaction("INSERT INTO t (id) VALUES (90)", "ALTER TABLE t ADD c text DEFAULT 'x', ADD d integer DEFAULT 70")
    rig.write("INSERT INTO t (id) VALUES (91)")
    for column in ("c", "d"):
        with pytest.raises(FatalError, match=rf"column {column} of public\.t was added as") as told:
            rig.run()
        execute(rig.target_dsn, *pasted(told, "rows are the source's (", "), then"))
    rig.run()
    assert_equal(rig)


@gated
def test_nobody_is_to_vouch_for_rows_that_come_with_a_column_s_transaction(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.REFUSE)
    rig.transaction(
        "INSERT INTO t (id) VALUES (90)",
        "ALTER TABLE t ADD c uuid DEFAULT gen_random_uuid()",
        "INSERT INTO t (id) VALUES (91)",
    )
    with pytest.raises(FatalError, match=r"the log does not tell what older rows hold.*recopy") as told:
        rig.run()
    assert "ddl=skip" not in str(told.value)
    execute(rig.target_dsn, "ALTER TABLE t ADD COLUMN c uuid")
    recopy(rig)
    rig.run()
    assert_equal(rig)


@gated
def test_rows_that_a_run_brings_before_a_column_that_it_takes_as_done_get_its_value(rig: Rig) -> None:
    execute(rig.target_dsn, "ALTER TABLE t ADD COLUMN c integer")
    rig.write("INSERT INTO t (id) VALUES (90)", "ALTER TABLE t ADD c integer DEFAULT 3", "DELETE FROM t WHERE id = 2")
    rig.having(ddl=DdlPolicy.SKIP).run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize("ddl", [DdlPolicy.REFUSE, pytest.param(DdlPolicy.APPLY, marks=pytest.mark.long)])
def test_a_column_whose_type_the_target_lacks_goes_on_with_what_check_prints(rig: Rig, ddl: DdlPolicy) -> None:
    rig = rig.having(ddl=ddl)
    rig.write("CREATE TYPE mood AS ENUM ('sad', 'so, so')", "ALTER TABLE t ADD COLUMN c mood")
    rig.write("UPDATE t SET c = 'sad' WHERE id = 3")
    with pytest.raises(FatalError, match=r"(?s)lacks the type public\.mood: `parallel-apply check`") as told:
        rig.run()
    found = check_pipeline(rig.config, rig.source, rig.target).findings
    fixes = [fix for one in found if one.where == "type public.mood" for fix in one.fix]
    execute(rig.target_dsn, *fixes)
    if ddl is DdlPolicy.REFUSE:
        execute(rig.target_dsn, *pasted(told, "rows are the source's (", "), then"))
    rig.run()
    assert_equal(rig)
