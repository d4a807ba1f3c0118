"""A run stops where a column is not proven at the moment of a change: its values, and which column it is."""

from __future__ import annotations

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, Start
from airflow_parallel_apply.pipeline.errors import ConfigurationError, FatalError
from airflow_parallel_apply.pipeline.log.open import open_reader
from tests.support.ddl_messages import ddl, install
from tests.support.migrated_table import PARTED, PLAIN, ROWS, assert_equal, begin, either_kind, recopied
from tests.support.rig import Rig, execute, skip_as_the_hint_says
from tests.support.variants import gated, variants

FOLLOWED = {
    "a default that is dropped": ["ALTER TABLE t ADD c integer DEFAULT 5", "ALTER TABLE t ALTER c DROP DEFAULT"],
    "a default that is set later": ["ALTER TABLE t ADD c integer", "ALTER TABLE t ALTER c SET DEFAULT 5"],
    "a table that was rewritten before": ["VACUUM FULL t", "SELECT 'run'", "ALTER TABLE t ADD c integer"],
    "two columns, one of which left again": [
        "ALTER TABLE t ADD x text DEFAULT 'x', ADD c integer DEFAULT 7", "INSERT INTO t VALUES (90, 'x')",
        "ALTER TABLE t DROP x",
    ],
    "a column that no row met for a run": ["ALTER TABLE t ADD c integer", "SELECT 'run'", "VACUUM FULL t"],
}  # fmt: skip

UNKNOWN = {
    "a value for each row": [
        "ALTER TABLE t ADD c uuid DEFAULT gen_random_uuid()", "ALTER TABLE t ALTER c DROP DEFAULT",
    ],
    "an identity": [
        "ALTER TABLE t ADD c integer GENERATED ALWAYS AS IDENTITY", "ALTER TABLE t ALTER c DROP IDENTITY",
    ],
    "a default in a table that was rewritten": [
        "ALTER TABLE t ADD c integer DEFAULT 5", "ALTER TABLE t ALTER c DROP DEFAULT", "VACUUM FULL t",
    ],
    "a default and another type": [
        "ALTER TABLE t ADD c integer DEFAULT 5", "ALTER TABLE t ALTER c DROP DEFAULT",
        "ALTER TABLE t ALTER c TYPE text",
    ],
}  # fmt: skip


def write(rig: Rig, statements: list[str]) -> None:
    """With a run wherever they say so."""
    for statement in statements:
        if statement == "SELECT 'run'":
            rig.run()
        else:
            rig.write(statement)


@gated
@pytest.mark.parametrize(
    "recipe",
    variants(
        FOLLOWED,
        gated=["a default that is set later", "a table that was rewritten before", "a default that is dropped"],
    ),
)
def test_what_older_rows_hold_in_a_new_column_is_followed_where_it_is_proven(rig: Rig, recipe: str) -> None:
    begin(rig, *PLAIN)
    write(rig, FOLLOWED[recipe])
    rig.write("INSERT INTO t (id, c) VALUES (100, 1)", "UPDATE t SET a = 'z' WHERE id < 5")
    rig.run()
    assert_equal(rig)


@pytest.mark.parametrize(
    ("recipe", "tables"),
    either_kind(UNKNOWN, gated=["a value for each row", "an identity", "a default in a table that was rewritten"]),
)
def test_what_older_rows_hold_in_a_new_column_stops_the_run_where_it_is_not(
    rig: Rig, recipe: str, tables: tuple[str, ...]
) -> None:
    begin(rig, *tables)
    write(rig, UNKNOWN[recipe])
    rig.write(
        "INSERT INTO t (id, a) VALUES (100, 'x')" if "uuid" in UNKNOWN[recipe][0] else "DELETE FROM t WHERE id < 9"
    )
    with pytest.raises(FatalError, match=r"column c of public\.t was added .*(?s:.*)recopy .*--table public\.t"):
        rig.run()
    type_name = "uuid" if "uuid" in UNKNOWN[recipe][0] else "text" if "text" in UNKNOWN[recipe][-1] else "integer"
    recopied(rig, f"ALTER TABLE t ADD COLUMN c {type_name}")
    rig.write("DELETE FROM t WHERE id = 11")
    rig.run()
    assert_equal(rig)


@gated
def test_partitions_tell_what_older_rows_hold_in_a_new_column(rig: Rig) -> None:
    begin(rig, *PARTED)
    rig.write("ALTER TABLE t ADD c integer DEFAULT 5", "ALTER TABLE t ALTER c DROP DEFAULT")
    rig.write("CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (10000) TO (20000)", "INSERT INTO t VALUES (10001)")
    execute(rig.target_dsn, "CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (10000) TO (20000)")
    rig.run()
    assert_equal(rig)


@gated
def test_a_message_that_makes_other_values_at_the_target_does_not_pass_for_the_column(rig: Rig) -> None:
    begin(rig, *PLAIN)
    execute(rig.target_dsn, "ALTER TABLE t ADD c uuid DEFAULT gen_random_uuid()")
    rig.write("ALTER TABLE t ADD c uuid DEFAULT gen_random_uuid()", "DELETE FROM t WHERE id < 9")
    with pytest.raises(FatalError, match=r"column c of public\.t was added .*(?s:.*)recopy .*--table public\.t"):
        rig.run()
    recopied(rig).run()
    assert_equal(rig)


RETYPED = {"another": "ALTER TABLE t ALTER b TYPE bigint", "its own": "ALTER TABLE t ALTER c TYPE integer USING c + id"}


@gated
@pytest.mark.parametrize(
    ("column", "is_captured"),
    [("another", True), ("its own", True), pytest.param("its own", False, marks=pytest.mark.long)],
)
def test_where_a_new_column_s_type_is_sent_nothing_proves_what_older_rows_hold(
    rig: Rig, column: str, is_captured: bool
) -> None:
    begin(rig, *PLAIN)
    install(rig.source_dsn)
    if not is_captured:
        rig.write("DROP EVENT TRIGGER parallel_apply_capture_rewrite", "DROP EVENT TRIGGER parallel_apply_capture_ddl")
    for sent in ("ALTER TABLE t ADD c integer DEFAULT 5", RETYPED[column]):
        rig.transaction(ddl(sent), sent)
        rig.run()
    rig.write("INSERT INTO t VALUES (100, 'x', 1, 2)")
    if column == "its own":
        with pytest.raises(FatalError, match=r"c of public\.t was added .*the log does not tell what older rows hold"):
            rig.run()
        recopied(rig)
    rig.run()
    assert_equal(rig)


@gated
def test_what_older_rows_hold_in_a_new_column_has_the_labels_that_were_sent_since(rig: Rig) -> None:
    rig.both("CREATE TYPE mood AS ENUM ('a', 'b')")
    begin(rig, *PLAIN)
    install(rig.source_dsn)
    labels = ("ALTER TYPE mood RENAME VALUE 'a' TO 'z'", "ALTER TYPE mood RENAME VALUE 'b' TO 'a'")
    for sent in ("ALTER TABLE t ADD c mood DEFAULT 'a'", *labels):
        rig.transaction(ddl(sent), sent)
        if sent != labels[0]:
            rig.run()
    rig.write("INSERT INTO t VALUES (100, 'x', 1, 'a')")
    rig.run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize("is_captured", [True, pytest.param(False, marks=pytest.mark.long)])
def test_what_a_person_gave_older_rows_stays_under_skip(rig: Rig, is_captured: bool) -> None:
    begin(rig, *PLAIN)
    if is_captured:
        install(rig.source_dsn)
    statements = ("ALTER TABLE t ADD c integer DEFAULT 5", RETYPED["its own"])
    write(rig, [statements[0], "SELECT 'run'", statements[1]])
    rig.write("INSERT INTO t VALUES (100, 'x', 1, 2)")
    with pytest.raises(FatalError, match=r"public\.t was rewritten while c changed"):
        rig.run()
    execute(rig.target_dsn, *statements)
    rig.having(ddl=DdlPolicy.SKIP).run()
    assert_equal(rig)


@gated
def test_a_column_made_again_under_its_name_does_not_pass_for_the_one_before(rig: Rig) -> None:
    begin(rig, *PLAIN)
    rig.write("ALTER TABLE t DROP b", "ALTER TABLE t ADD b integer")
    rig.write("INSERT INTO t VALUES (100, 'x', 1)", "UPDATE t SET b = 2 WHERE id < 30", "DELETE FROM t WHERE b IS NULL")
    rig.write("ALTER TABLE t ALTER b SET NOT NULL", "INSERT INTO t VALUES (101, 'x', 1)")
    with pytest.raises(FatalError, match=r"(?s)nothing tells which columns.*b.*recopy --pipeline p --table public\.t"):
        rig.run()
    recopied(rig).run()
    rig.write("INSERT INTO t VALUES (102, 'y', 3)")
    rig.run()
    assert_equal(rig)


@gated
def test_one_that_was_made_again_before_a_quiet_run_is_followed(rig: Rig) -> None:
    begin(rig, *PLAIN)
    rig.write("ALTER TABLE t DROP b", "ALTER TABLE t ADD b integer DEFAULT 7")
    rig.run()
    rig.write("UPDATE t SET b = 2 WHERE id < 30", "ALTER TABLE t ALTER b SET NOT NULL")
    rig.run()
    assert_equal(rig)


@gated
def test_a_definition_of_a_lower_transaction_that_commits_later_is_not_that_of_a_row_before(rig: Rig) -> None:
    begin(rig, *PLAIN)
    with psycopg.connect(rig.source_dsn) as early:
        early.execute("SELECT pg_current_xact_id()")
        rig.write("UPDATE t SET b = 2 WHERE id < 30")
        early.execute("ALTER TABLE t DROP b")
        early.execute("ALTER TABLE t ADD b integer DEFAULT 7")
    rig.write("INSERT INTO t VALUES (100, 'x', 1)")
    with pytest.raises(FatalError, match=r"(?s)nothing tells which columns.*b.*recopy --pipeline p --table public\.t"):
        rig.run()
    recopied(rig)
    rig.write("INSERT INTO t VALUES (102, 'y', 3)")
    rig.run()
    assert_equal(rig)


def test_a_not_null_that_is_not_validated_makes_no_key(rig: Rig) -> None:
    table = "CREATE TABLE t (id integer UNIQUE, a text, b integer)"
    rig.both(table, "ALTER TABLE t REPLICA IDENTITY FULL", "INSERT INTO t VALUES (NULL, 'x', 1), (NULL, 'y', 2)")
    rig.both("ALTER TABLE t ADD CONSTRAINT later NOT NULL id NOT VALID")
    rig = rig.having(start=Start.EQUAL)
    rig.prepare()
    rig.write(ROWS, "DELETE FROM t WHERE a = 'y'")
    rig.run()
    rig.write("DELETE FROM t WHERE id IS NULL", "ALTER TABLE t VALIDATE CONSTRAINT later", "UPDATE t SET b = 5")
    rig.run()
    rig.write("UPDATE t SET b = 6 WHERE id < 20")
    rig.run()
    assert_equal(rig)


@gated
def test_a_change_of_type_that_depends_on_who_made_it_is_left_to_a_person(rig: Rig) -> None:
    begin(rig, "CREATE TABLE t (id integer PRIMARY KEY, a text, b integer, at timestamp DEFAULT '2026-01-01 12:00')")
    install(rig.source_dsn)
    retype = "SET TimeZone = 'Asia/Tokyo'", "ALTER TABLE t ALTER at TYPE timestamptz"
    rig.write(*retype, "DELETE FROM t WHERE id < 9")
    with pytest.raises(FatalError, match=r"column at of public\.t became timestamp with time zone"):
        rig.run()
    execute(rig.target_dsn, *retype)
    with pytest.raises(FatalError, match="Nothing shows that the target's older values were cast") as unseen:
        rig.run()
    skip_as_the_hint_says(rig, unseen.value)
    assert_equal(rig)


@gated
def test_a_key_that_moved_while_the_old_one_is_unique_at_the_target_is_named(rig: Rig) -> None:
    begin(rig, "CREATE TABLE t (id integer PRIMARY KEY, a text NOT NULL UNIQUE, b integer)")
    rig.write("ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t ADD PRIMARY KEY (a)")
    rig.write("INSERT INTO t VALUES (1, 'new', 1)", "UPDATE t SET b = 5 WHERE id = 1")
    with pytest.raises(FatalError, match=r"other columns, run ALTER TABLE \S+ DROP CONSTRAINT \"t_pkey\" at"):
        rig.run()
    execute(rig.target_dsn, "ALTER TABLE t DROP CONSTRAINT t_pkey")
    rig.run()
    assert_equal(rig)


@gated
def test_a_table_that_comes_later_is_seen_before_its_first_row(rig: Rig) -> None:
    begin(rig, *PLAIN)
    rig.both("CREATE TABLE late (id integer PRIMARY KEY, x integer, a text)", "ALTER TABLE late DROP x")
    rig.prepare()
    sightings = open_reader(rig.config.log_url).state().sightings
    assert [(one.last_number, one.absent) for one in sightings] == [(3, ()), (3, (2,))]
    rig.write("INSERT INTO late VALUES (1, 'a')", "ALTER TABLE late ADD x integer DEFAULT 4", "UPDATE late SET a = 'b'")
    rig.run()
    assert_equal(rig)


PASSED_ON = {
    "renamed, written, dropped, another made": [
        "ALTER TABLE t RENAME b TO c", "INSERT INTO t VALUES (100, 'x', 5)", "ALTER TABLE t DROP c",
        "ALTER TABLE t ADD c integer",
    ],
    "by way of a name of its own": [
        "ALTER TABLE t RENAME b TO c", "UPDATE t SET c = 7 WHERE id < 9", "ALTER TABLE t DROP c",
        "ALTER TABLE t ADD d integer DEFAULT 3", "ALTER TABLE t RENAME d TO c",
    ],
    "and written again": [
        "ALTER TABLE t RENAME b TO c", "INSERT INTO t VALUES (100, 'x', 5)", "ALTER TABLE t DROP c",
        "ALTER TABLE t ADD c integer", "INSERT INTO t VALUES (101, 'x', 6)",
    ],
}  # fmt: skip


@gated
@pytest.mark.parametrize(
    ("recipe", "tables"), either_kind(PASSED_ON, seldom=["and written again", "by way of a name of its own"])
)
def test_a_name_that_passes_on_between_two_captures_stops_the_run(
    rig: Rig, recipe: str, tables: tuple[str, ...]
) -> None:
    begin(rig, *tables)
    write(rig, PASSED_ON[recipe])
    with pytest.raises(FatalError, match=r"(?s)nothing tells which columns.*: .*recopy --pipeline p --table public\.t"):
        rig.run()
    recopied(rig, "ALTER TABLE t DROP b", "ALTER TABLE t ADD c integer")
    rig.write("INSERT INTO t VALUES (102, 'y', 3)")
    rig.run()
    assert_equal(rig)


@gated
def test_another_table_under_the_former_name_does_not_tell_what_older_rows_hold(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1), (2)")
    rig.run()
    rig.write(
        "ALTER TABLE t ADD c varchar(10) DEFAULT 'x'",
        "INSERT INTO t (id) VALUES (100)",
        "ALTER TABLE t ALTER c TYPE varchar(20)",
        "ALTER TABLE t RENAME TO t_old",
        "CREATE TABLE t (id integer PRIMARY KEY, c varchar(20))",
    )
    with pytest.raises(FatalError, match=r"c of public\.t was added .*the log does not tell what older rows hold"):
        rig.run()
    execute(rig.target_dsn, "ALTER TABLE t ADD c varchar(10)")
    # The name is another table's by now: what had it is copied.
    with pytest.raises(
        ConfigurationError, match=r"copy what had the names: `parallel-apply recopy --pipeline p --table public\.t_old`"
    ):
        recopied(rig)
    execute(rig.target_dsn, "ALTER TABLE t RENAME TO t_old", "CREATE TABLE t (id integer PRIMARY KEY, c varchar(20))")
    recopied(rig, table="t_old")
    rig.write("INSERT INTO t VALUES (1, 'y')")
    rig.run()
    assert_equal(rig)


@gated
def test_a_column_made_as_another_is_dropped_is_told_by_a_type_that_the_other_cannot_have_had(rig: Rig) -> None:
    begin(rig, *PLAIN)
    rig.write("ALTER TABLE t DROP b, ADD c date DEFAULT '2026-01-01'", "INSERT INTO t VALUES (100, 'x')")
    rig.run()
    assert_equal(rig)
