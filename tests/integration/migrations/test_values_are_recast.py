"""A table that an ALTER TABLE rewrote: what it makes of the values is not sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, Start, TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.ddl_messages import ddl, install
from tests.support.rig import Rig, execute
from tests.support.variants import gated, variants

_TABLE = "CREATE TABLE t (id integer PRIMARY KEY, a varchar(20), b integer, n numeric(6,2))"
_MOVED = "UPDATE t SET b = b"

FOLLOWED = {
    "a type that keeps all values": ["ALTER TABLE t ALTER a TYPE text, ALTER n TYPE numeric(9,2)"],
    "a rewrite in another run": ["VACUUM FULL t", _MOVED, "SELECT 'run'", "ALTER TABLE t ALTER a TYPE text"],
    "a rewrite in a later run": ["ALTER TABLE t ALTER a TYPE text", "SELECT 'run'", "VACUUM FULL t", _MOVED],
    "a rewrite that moves rows as they are": [
        "ALTER TABLE t ALTER a TYPE text", "VACUUM FULL t", "ALTER TABLE t ALTER b SET DEFAULT 4",
        "ALTER TABLE t ALTER n SET STATISTICS 9", "CLUSTER t USING t_pkey", "ALTER TABLE t RENAME n TO m",
        "REINDEX TABLE t", "UPDATE t SET b = 0 WHERE id < 20",
    ],
}  # fmt: skip

DOUBTED = {
    "to text": (["ALTER TABLE t ALTER a TYPE text USING 'was ' || a"], "a"),
    "as a longer one": (
        ["ALTER TABLE t ALTER a TYPE varchar(30) USING 'was ' || a", "ALTER TABLE t ALTER a SET DEFAULT 4"], "a",
    ),
    "under a new name": (["ALTER TABLE t RENAME a TO c", "ALTER TABLE t ALTER c TYPE varchar USING upper(c)"], "c"),
    "a number": (["ALTER TABLE t ALTER n TYPE numeric(8,2) USING n * 2", "VACUUM FULL t"], "n"),
    "a type that rewrites by itself": (["ALTER TABLE t ALTER b TYPE bigint USING b * 2", _MOVED], "b"),
    "to the type that it is": (["ALTER TABLE t ALTER b TYPE integer USING b + 1"], "b"),
    "the key": (["ALTER TABLE t ALTER id TYPE integer USING 61 - id", "ALTER TABLE t ALTER id SET STATISTICS 9"], "id"),
    "without an expression": (["ALTER TABLE t ALTER b TYPE bigint"], "b"),
    "in all rows at once": (["BEGIN; UPDATE t SET b = 1; ALTER TABLE t ALTER b TYPE integer USING id; COMMIT"], "b"),
}  # fmt: skip

TOLD = {
    "a type without an expression": [
        "ALTER TABLE t ALTER b TYPE bigint", "ALTER TABLE t ALTER b SET DEFAULT 4", "VACUUM FULL t",
    ],
    "several, and what they meet": [
        "BEGIN; SAVEPOINT s; ALTER TABLE t ALTER b TYPE bigint; RELEASE s; UPDATE t SET b = 5 WHERE id < 20; "
        "ALTER TABLE t ALTER b TYPE numeric; COMMIT",
        "ALTER TABLE t RENAME b TO d", "ALTER TABLE t ALTER n TYPE numeric(9,3)",
    ],
    "a cast that tools write": [
        'ALTER TABLE "t" ALTER COLUMN "b" TYPE bigint USING "b"::bigint',
        "ALTER TABLE t ALTER n TYPE NUMERIC(9, 3) USING (n::NUMERIC(9,3)), ALTER a SET DATA TYPE text USING a::text",
        "UPDATE t SET b = 5 WHERE id < 20",
        "ALTER TABLE t ALTER b TYPE numeric USING CAST(b AS numeric) /*application:Shop*/",
    ],
    "digits that a row was written without": [
        "UPDATE t SET n = n + 0.55", "ALTER TABLE t ALTER n TYPE numeric(6,1)", "INSERT INTO t (id) VALUES (99)",
        "ALTER TABLE t ALTER n TYPE numeric(6,2)",
    ],
}  # fmt: skip

HIDDEN_CASTS = {
    "one behind a cast": "ALTER TABLE t ALTER b TYPE bigint USING (b::bigint) * 2",
    "a cast of another column": "ALTER TABLE t ALTER b TYPE bigint USING id::bigint",
    "a cast by another type": "ALTER TABLE t ALTER n TYPE numeric(9,3) USING n::numeric(9,1)",
    "one beside a cast": "ALTER TABLE t ALTER b TYPE bigint USING b::bigint, ALTER n TYPE numeric(9,3) USING n * 2",
    "one behind a comment with a cast": "ALTER TABLE t ALTER b TYPE bigint -- ALTER id TYPE bigint\nUSING id::bigint",
    "one beside more casts than are read": "ALTER TABLE t ALTER b TYPE bigint USING b::bigint;" * 101,
}  # fmt: skip

HIDDEN = HIDDEN_CASTS | {
    "an expression": "ALTER TABLE t ALTER b TYPE bigint using(b * 2)",
    "one in a block": "DO $$ BEGIN ALTER TABLE t ALTER b TYPE integer USING b + 1; END $$",
    "one for a column that is new": "ALTER TABLE t ADD b2 integer; UPDATE t SET b2 = 7; "
    "ALTER TABLE t ALTER b2 TYPE integer USING b2 + 1",
    "one behind a harmless change": "BEGIN; ALTER TABLE t ALTER b SET STATISTICS 9; "
    "ALTER TABLE t ALTER b TYPE integer USING b + 1; COMMIT",
    "one in a session without standard strings": "SET standard_conforming_strings = off; "
    "ALTER TABLE t ALTER b TYPE bigint USING b * 2",
    "one that no trigger saw": "ALTER EVENT TRIGGER parallel_apply_capture_rewrite DISABLE; "
    "ALTER TABLE t ALTER b TYPE integer USING b + 1; ALTER EVENT TRIGGER parallel_apply_capture_rewrite ENABLE ALWAYS; "
    "ALTER TABLE t ALTER b TYPE bigint",
}  # fmt: skip

PASSED = {
    "fewer digits, and as many again": [
        "ALTER TABLE t ALTER n TYPE numeric(6,1)", "ALTER TABLE t ALTER n TYPE numeric(6,2)",
    ],
    "whole numbers, and more digits than ever": [
        "ALTER TABLE t ALTER n TYPE integer", "SELECT 'run'", "ALTER TABLE t ALTER n TYPE numeric(9,2)",
    ],
    "without blanks, and without a rewrite back": [
        "ALTER TABLE t ALTER a TYPE varchar(2)", "SELECT 'run'", "ALTER TABLE t ALTER a TYPE varchar(20)",
    ],
    "a new column": [
        "ALTER TABLE t ADD n2 numeric(6,2) DEFAULT 1.55", "ALTER TABLE t ALTER n2 TYPE integer",
        "ALTER TABLE t ALTER n2 TYPE numeric(6,2)",
    ],
    "digits that rows had, and lost when they came again": [
        "INSERT INTO t (id, n) VALUES (97, 1.55)", "ALTER TABLE t ALTER n TYPE numeric(6,3)",
        "UPDATE t SET n = n + 0.005",
        "ALTER TABLE t ALTER n TYPE numeric(6,2)", "ALTER TABLE t ALTER n TYPE numeric(6,3)",
    ],
}  # fmt: skip


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig.both(_TABLE)
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, 'a' || i, i, i FROM generate_series(1, 60) i")
    rig.run()
    return rig


def write(rig: Rig, statements: list[str]) -> None:
    """With a run wherever they say so, and rows behind them."""
    for statement in statements:
        if statement == "SELECT 'run'":
            rig.run()
        else:
            rig.write(statement)
    key = 1 if any("ALTER id" in one for one in statements) else 9
    rig.write("INSERT INTO t (id) VALUES (100)", f"DELETE FROM t WHERE id < {key}")


def require_doubt(rig: Rig, column: str) -> None:
    what = rf"public\.t was rewritten while {column} changed.*(?s:.*)recopy --pipeline p --table public\.t"
    with pytest.raises(FatalError, match=what):
        rig.run()


def recopied(rig: Rig) -> Rig:
    """With the target's types as the source's."""
    types = rig.rows(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 't'::regclass "
        "AND attnum > 0 ORDER BY attnum", side="source",
    )  # fmt: skip
    if types[1][0] != "a":
        execute(rig.target_dsn, f"ALTER TABLE t RENAME a TO {types[1][0]}")
    execute(rig.target_dsn, *(f"ALTER TABLE t ALTER {name} TYPE {type_name}" for name, type_name in types))
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)
    return rig


def test_a_new_column_that_lost_its_values_is_not_taken_for_one_that_had_none(rig: Rig) -> None:
    write(rig, ["ALTER TABLE t ADD c integer", "UPDATE t SET c = 7", "ALTER TABLE t ALTER c TYPE integer USING NULL"])
    with pytest.raises(FatalError, match=r"column c of public\.t was added(?s:.*)recopy .*--table public\.t"):
        rig.run()


def assert_equal(rig: Rig) -> None:
    comparison = rig.comparison()
    assert comparison.equal, comparison


@pytest.mark.parametrize(
    "recipe",
    variants(FOLLOWED, seldom=["a type that keeps all values", "a rewrite in another run", "a rewrite in a later run"]),
)
def test_what_changes_no_value_is_followed(rig: Rig, recipe: str) -> None:
    write(rig, FOLLOWED[recipe])
    rig.run()
    assert_equal(rig)


@pytest.mark.parametrize(
    "recipe",
    variants(
        DOUBTED,
        seldom=[
            "to text", "under a new name", "a number", "a type that rewrites by itself", "to the type that it is",
            "without an expression", "as a longer one", "the key",
        ],
    ),
)  # fmt: skip
def test_a_rewrite_that_may_have_changed_values_stops_the_run(rig: Rig, recipe: str) -> None:
    statements, column = DOUBTED[recipe]
    write(rig, statements)
    require_doubt(rig, column)
    require_doubt(rig.having(ddl=DdlPolicy.REFUSE), column)
    recopied(rig).run()
    rig.write("DELETE FROM t WHERE id = 11")
    rig.run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize("ddl_policy", [DdlPolicy.APPLY, pytest.param(DdlPolicy.REFUSE, marks=pytest.mark.long)])
def test_a_change_at_the_target_alone_does_not_pass_for_an_answer(rig: Rig, ddl_policy: DdlPolicy) -> None:
    rig = rig.having(ddl=ddl_policy)
    write(rig, ["ALTER TABLE t ALTER b TYPE bigint"])
    execute(rig.target_dsn, "ALTER TABLE t ALTER b TYPE bigint")
    require_doubt(rig, "b")
    rig.having(ddl=DdlPolicy.SKIP).run()
    rig.write("DELETE FROM t WHERE id = 11")
    rig.run()
    assert_equal(rig)


@pytest.mark.parametrize(
    "recipe",
    variants(
        TOLD,
        seldom=["a type without an expression"],
        gated=["several, and what they meet", "digits that a row was written without"],
    ),
)
def test_a_source_that_tells_of_rewrites_is_followed_through_changes_of_type(rig: Rig, recipe: str) -> None:
    install(rig.source_dsn)
    rig.write("UPDATE t SET b = 7 WHERE id < 5")
    write(rig, TOLD[recipe])
    rig.run()
    assert_equal(rig)


@pytest.mark.parametrize(
    "recipe",
    variants(
        HIDDEN,
        seldom=["an expression", "one behind a harmless change", "one for a column that is new"],
        gated=HIDDEN_CASTS,
    ),
)
def test_what_it_does_not_tell_still_stops_the_run(rig: Rig, recipe: str) -> None:
    install(rig.source_dsn)
    write(rig, [HIDDEN[recipe]])
    require_doubt(rig, "(b2?|n|b, n)")


@gated
@pytest.mark.parametrize("recipe", variants(PASSED, gated=[one for one in PASSED if "digits" not in one]))
def test_a_type_under_which_no_row_was_written_stops_the_run_where_it_may_have_changed_values(
    rig: Rig, recipe: str
) -> None:
    install(rig.source_dsn)
    rig.write("UPDATE t SET a = 'x   ', n = n + 0.55")
    rig.run()
    write(rig, PASSED[recipe])
    what = r"columns of public\.t had other types or expressions in between.*: (n2?|a) \(.*recopy "
    with pytest.raises(FatalError, match=what):
        rig.run()
    execute(rig.target_dsn, *(one for one in PASSED[recipe] if "ADD" in one))
    recopied(rig).run()
    rig.write("DELETE FROM t WHERE id = 11")
    rig.run()
    assert_equal(rig)


@gated
def test_what_is_sent_of_a_column_tells_nothing_of_its_other_types(rig: Rig) -> None:
    install(rig.source_dsn)
    rig.write("UPDATE t SET n = n + 0.55")
    rig.run()
    add, back = "ALTER TABLE t ALTER n TYPE numeric(6,2) USING n + 1", "ALTER TABLE t ALTER n TYPE numeric(6,2)"
    rig.transaction(add, ddl(add))
    rig.write("ALTER TABLE t ALTER n TYPE numeric(6,1)")
    rig.transaction(back, ddl(back))
    with pytest.raises(FatalError, match=r"columns of public\.t had other types or expressions in between.*: n \("):
        rig.run()


@gated
@pytest.mark.parametrize("is_sent_alone", [True, False])
def test_a_default_that_rows_from_before_a_column_have_is_forgotten_by_what_is_sent_of_another_one(
    rig: Rig, is_sent_alone: bool
) -> None:
    install(rig.source_dsn)
    rig.write("ALTER TABLE t ADD c integer DEFAULT 5", "UPDATE t SET c = 6 WHERE id = 1")
    rig.run()
    statements = ("ALTER TABLE t ALTER b TYPE bigint USING b * 2", "ALTER TABLE t ALTER b TYPE bigint")
    own = [] if is_sent_alone else ["ALTER TABLE t ALTER c TYPE integer USING c + 1"]
    rig.transaction(statements[0], ddl(statements[0]), *own, statements[1], ddl(statements[1]))
    if own:
        with pytest.raises(FatalError, match=r"public\.t was rewritten while b, c changed"):
            rig.run()
        return
    rig.write("UPDATE t SET c = 7 WHERE id = 2")
    rig.run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize("case", ["a type comes behind it", "a longer text comes before it"])
def test_a_type_that_gives_a_sent_using_no_other_meaning_needs_no_message(rig: Rig, case: str) -> None:
    install(rig.source_dsn)
    rig.both("CREATE TABLE u (id integer PRIMARY KEY, b integer, c varchar(10))")
    rig.prepare()
    rig.write("INSERT INTO u VALUES (1, 7, 'x')")
    rig.run()
    sent, unsent = {
        "a type comes behind it": ("ALTER b TYPE bigint USING b * 100", "ALTER b TYPE numeric"),
        "a longer text comes before it": ("ALTER c TYPE text USING upper(c)", "ALTER c TYPE varchar(20)"),
    }[case]
    steps = [[f"ALTER TABLE u {sent}", ddl(f"ALTER TABLE u {sent}")], [f"ALTER TABLE u {unsent}"]]
    for step in steps if case == "a type comes behind it" else reversed(steps):
        rig.transaction(*step)
    rig.write("INSERT INTO u VALUES (2, 8, 'y')")
    rig.run()
    assert_equal(rig)


def test_what_needs_no_message_is_followed_beside_what_is_sent(rig: Rig) -> None:
    install(rig.source_dsn)
    sent = "ALTER TABLE t ALTER b TYPE bigint USING b * 2"
    rig.write("ALTER TABLE t ALTER a TYPE text", "ALTER TABLE t ALTER n TYPE numeric(9,2)")
    rig.transaction(sent, ddl(sent))
    write(rig, [])
    rig.run()
    assert_equal(rig)


@gated
def test_of_a_table_that_no_row_has_told_of_the_last_look_tells_the_first_type(rig: Rig, tmp_path: Path) -> None:
    rig.both("CREATE TABLE u (id integer PRIMARY KEY, j json)")
    rig.write("INSERT INTO u VALUES (1, '{\"b\":1}')")
    tables = TablePatterns(include=("public.u",))
    rig = rig.having(pipeline="q", log_url=str(tmp_path / "other"), start=Start.COPY, tables=tables)
    rig.prepare()
    rig.run()
    install(rig.source_dsn)
    rig.write("ALTER TABLE u ALTER j TYPE jsonb", "ALTER TABLE u ALTER j TYPE json", "INSERT INTO u VALUES (2)")
    with pytest.raises(FatalError, match=r"columns of public\.u had other types or expressions in between.*: j \("):
        rig.run()


@gated
@pytest.mark.parametrize("is_by_superuser", [pytest.param(True, marks=pytest.mark.long), False])
def test_an_expression_that_is_sent_does_the_same_at_the_target(rig: Rig, is_by_superuser: bool) -> None:
    install(rig.source_dsn)
    if not is_by_superuser:
        rig.write("DROP EVENT TRIGGER parallel_apply_capture_rewrite", "DROP EVENT TRIGGER parallel_apply_capture_ddl")
    for change in ("ALTER TABLE t ALTER b TYPE integer USING b + 1", "ALTER TABLE t ALTER b TYPE bigint USING b * 2"):
        rig.transaction("UPDATE t SET b = 3 WHERE id = 30", change, ddl(change), "DELETE FROM t WHERE id = 31")
        rig.run()
        assert_equal(rig)
    rig.transaction("ALTER TABLE t ALTER b TYPE bigint USING b * 2", ddl("COMMENT ON TABLE t IS 'x'"))
    require_doubt(rig, "b")
