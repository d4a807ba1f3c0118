"""DDL that the target does not take as it is sent: each hint is followed as it is printed, to green and equal."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.ddl_messages import ddl, install
from tests.support.rig import Rig, execute, skip_as_the_hint_says
from tests.support.variants import GATED, gated

_PARTED = (
    "CREATE TABLE t (id integer PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE t_rest PARTITION OF t DEFAULT",
)


@pytest.fixture
def rig(rig: Rig) -> Rig:
    install(rig.source_dsn)
    return rig.having(ddl=DdlPolicy.APPLY)


def told(rig: Rig, statement: str) -> None:
    rig.transaction(statement, ddl(statement))


def assert_equal(rig: Rig) -> None:
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
def test_a_partition_for_rows_that_lie_in_the_default_one_is_left_to_the_source(rig: Rig) -> None:
    rig.both(*_PARTED)
    rig.prepare()
    make = "CREATE TABLE t_40 PARTITION OF t FOR VALUES FROM (40) TO (50)"
    rig.write(make, "INSERT INTO t VALUES (1, 'x'), (45, 'x')")
    rig.transaction(ddl(make))
    rig.write("UPDATE t SET v = 'y'")
    with pytest.raises(FatalError, match="need not be partitioned as the source is") as refused:
        rig.run()
    skip_as_the_hint_says(rig, refused.value)
    rig.run()
    assert_equal(rig)


@gated
def test_a_key_that_a_partitioned_table_cannot_have_takes_another_table(rig: Rig) -> None:
    execute(rig.source_dsn, "CREATE TABLE t (id integer PRIMARY KEY, v text, k integer NOT NULL)")
    parted = "CREATE TABLE t (id integer PRIMARY KEY, v text, k integer NOT NULL) PARTITION BY RANGE (id)"
    execute(rig.target_dsn, parted, _PARTED[1])
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, 'x', 100 + i FROM generate_series(1, 20) i")
    rig.run()
    rig.write(
        "ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t ADD PRIMARY KEY (k)", "UPDATE t SET id = id + 1000"
    )
    with pytest.raises(FatalError, match="partitioned by columns that are not in the key") as refused:
        rig.run()
    commands = re.search(r"Run (ALTER .*?) at the target", str(refused.value))
    assert commands is not None, refused.value
    execute(rig.target_dsn, *commands.group(1).split("; "))
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)
    rig.write("UPDATE t SET v = 'y' WHERE k % 2 = 0", "DELETE FROM t WHERE k % 5 = 0")
    rig.run()
    assert_equal(rig)


@gated
def test_ddl_that_would_change_a_copy_of_a_later_moment_is_passed_over_alone(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text)", "CREATE TABLE u (id integer PRIMARY KEY)")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'x')", "INSERT INTO u VALUES (1)")
    rig.run()
    told(rig, "UPDATE t SET v = upper(v)")
    rig.write("UPDATE t SET v = 'small'", "INSERT INTO u VALUES (2)")
    told(rig, "ALTER TABLE u ADD COLUMN n integer")
    rig.write("UPDATE u SET n = id")
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)
    with pytest.raises(FatalError, match="it would change the copy") as refused:
        rig.run()
    skip_as_the_hint_says(rig, refused.value)
    rig.run()
    assert_equal(rig)
    assert rig.rows("SELECT v FROM t") == [("small",)]


@gated
@pytest.mark.parametrize("is_behind", [True, False])
def test_rows_that_come_behind_what_is_done_by_hand_are_told(rig: Rig, *, is_behind: bool) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text)")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'x')")
    rig.run()
    execute(rig.target_dsn, "CREATE TABLE z (id integer PRIMARY KEY)")
    computes, made = "ALTER TABLE t ALTER v TYPE text USING v || 'u'", "CREATE TABLE z (id integer PRIMARY KEY)"
    statements = [computes, rig.ddl(computes), made, rig.ddl(made)]
    row = "INSERT INTO t VALUES (2, 'y')"
    rig.transaction(*([row, *statements] if is_behind else [*statements, row]))
    with pytest.raises(FatalError, match='relation "z" already exists') as refused:
        rig.run()
    assert ("come behind what you do" in str(refused.value)) is is_behind
    execute(rig.target_dsn, computes)
    skip_as_the_hint_says(rig, refused.value)
    if is_behind:
        execute(rig.target_dsn, "UPDATE t SET v = v || 'u' WHERE id = 2")
    rig.run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize(
    "demand",
    [
        "ALTER v SET NOT NULL",
        pytest.param("ADD CONSTRAINT full_v CHECK (v IS NOT NULL)", marks=pytest.mark.long),
        pytest.param("ADD CONSTRAINT one_w UNIQUE (w)", marks=pytest.mark.long),
    ],
)
def test_a_demand_that_a_copy_of_a_later_moment_does_not_meet_is_passed_over_alone(rig: Rig, demand: str) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text, w integer)")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'x', 1)")
    rig.run()
    told(rig, f"ALTER TABLE t {demand}")
    rig.write(
        "ALTER TABLE t ALTER v DROP NOT NULL",
        "ALTER TABLE t DROP CONSTRAINT IF EXISTS full_v",
        "ALTER TABLE t DROP CONSTRAINT IF EXISTS one_w",
        "INSERT INTO t VALUES (2, NULL, 1)",
    )
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)
    rig.write("UPDATE t SET w = 5")
    rig.run()
    assert_equal(rig)


def test_what_the_targets_own_objects_forbid_is_followed_once_they_are_out_of_the_way(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, v integer)")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 1)")
    rig.run()
    execute(rig.target_dsn, "CREATE VIEW seen AS SELECT v FROM t")
    told(rig, "ALTER TABLE t ALTER v TYPE bigint")
    with pytest.raises(
        FatalError, match=r"cannot alter type of a column used by a view.*rule _RETURN on view seen"
    ) as red:
        rig.run()
    assert "drop them, and make them again behind it" in str(red.value)
    assert "in a transaction" not in str(red.value)
    execute(rig.target_dsn, "DROP VIEW seen")
    rig.run()
    assert_equal(rig)
    assert rig.rows("SELECT pg_typeof(v)::text FROM t") == [("bigint",)]


@gated
def test_foreign_keys_in_the_way_of_a_column_are_named_with_the_statements_that_drop_them(rig: Rig) -> None:
    """The source has dropped them; of those that take the new type nothing is said."""
    rig.both(
        "CREATE TABLE above (id integer PRIMARY KEY, n integer UNIQUE, b bigint UNIQUE)",
        "CREATE TABLE t (id integer PRIMARY KEY REFERENCES above, n integer REFERENCES above (n), "
        "b integer REFERENCES above (b))",
    )
    rig.prepare()
    rig.write("INSERT INTO above VALUES (1, 1, 1)", "INSERT INTO t VALUES (1, 1, 1)")
    rig.run()
    rig.write("ALTER TABLE t DROP CONSTRAINT t_id_fkey, ALTER id TYPE text, ALTER b TYPE smallint")
    rig.write("INSERT INTO t VALUES ('2', 1, 1)")
    assert keys_dropped(rig) == ["ALTER TABLE public.t DROP CONSTRAINT t_id_fkey"]
    execute(rig.target_dsn, "ALTER TABLE t ALTER id TYPE text, ALTER b TYPE smallint")
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)
    rig.run()
    rig.write("ALTER TABLE above DROP n CASCADE", "INSERT INTO above VALUES (2, 2)")
    assert keys_dropped(rig) == ["ALTER TABLE public.t DROP CONSTRAINT t_n_fkey"]
    rig.run()
    assert_equal(rig)
    assert rig.rows("SELECT count(*) FROM information_schema.columns WHERE table_name = 'above'") == [(2,)]


def keys_dropped(rig: Rig) -> list[str]:
    """Drop foreign keys as the hint of the next run says."""
    with pytest.raises(FatalError) as red:
        rig.run()
    found = re.search(r"Run (ALTER TABLE [^;]* DROP CONSTRAINT .*?) at the target first", str(red.value))
    statements = found.group(1).split("; ") if found else []
    execute(rig.target_dsn, *statements)
    return statements


@gated
def test_what_cannot_run_in_a_transaction_is_passed_over(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)")
    rig.prepare()
    for text in ("VACUUM t", "SELECT 1 AS id INTO other"):
        rig.transaction(ddl(text))
    rig.write("INSERT INTO t VALUES (1)")
    for _ in range(2):
        with pytest.raises(FatalError, match=r"cannot run this in a transaction: (VACUUM t|SELECT 1)") as refused:
            rig.run()
        skip_as_the_hint_says(rig, refused.value)
    rig.run()
    assert_equal(rig)


@pytest.mark.parametrize("is_told", [pytest.param(False, marks=GATED), pytest.param(True, marks=pytest.mark.long)])
def test_a_wider_key_that_takes_the_name_of_the_former_one_is_followed_by_hand(rig: Rig, is_told: bool) -> None:
    """A key of integers comes to its end, and a filled column of bigints takes its place, in one transaction."""
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text)")
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 20) i", "ALTER TABLE t ADD wide bigint")
    rig.write(
        "UPDATE t SET wide = id", "CREATE UNIQUE INDEX t_wide ON t (wide)", "ALTER TABLE t ALTER wide SET NOT NULL"
    )
    rig.run()
    swap = (
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "ALTER TABLE t RENAME id TO narrow",
        "ALTER TABLE t RENAME wide TO id",
        "ALTER TABLE t ADD CONSTRAINT t_pkey PRIMARY KEY USING INDEX t_wide",
        "ALTER TABLE t ALTER narrow DROP NOT NULL",
    )
    rig.transaction(*swap, *((ddl("; ".join((*swap[:3], "ALTER TABLE t ADD PRIMARY KEY (id)"))),) if is_told else ()))
    rig.write("INSERT INTO t (id, v) VALUES (3000000000, 'wide')", "UPDATE t SET v = 'y' WHERE id = 5")
    with pytest.raises(FatalError, match="violates not-null constraint") as refused:
        rig.run()
    commands = re.search(r"Run (ALTER .*? DROP NOT NULL)", str(refused.value))
    assert commands is not None, refused.value
    execute(rig.target_dsn, *commands.group(1).split("; "))
    rig.run()
    rig.write("ALTER TABLE t DROP narrow", "DELETE FROM t WHERE id = 6", "INSERT INTO t (id) VALUES (3000000001)")
    rig.run()
    assert_equal(rig)


_LEFT = {
    "a key that is made anew under its name": (
        "ALTER TABLE t ADD u uuid DEFAULT gen_random_uuid() NOT NULL, DROP id; ALTER TABLE t RENAME u TO id; "
        "ALTER TABLE t ADD PRIMARY KEY (id)"
    ),
    "one that goes by another name": (
        "ALTER TABLE t ADD u uuid DEFAULT gen_random_uuid() NOT NULL; ALTER TABLE t RENAME id TO number; "
        "ALTER TABLE t RENAME u TO id; ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id)"
    ),
    "a text that was cast to a number": "ALTER TABLE t ALTER v TYPE integer USING v::integer",
}


@gated
@pytest.mark.parametrize("recipe", _LEFT)
def test_what_is_left_to_a_person_runs_at_the_target_as_it_is_printed(rig: Rig, recipe: str) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text)")
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, i FROM generate_series(1, 9) i")
    rig.run()
    rig.write(_LEFT[recipe], "UPDATE t SET v = 70 WHERE v::integer = 7")
    with pytest.raises(FatalError, match=r"column (id|v) of public\.t (was added|became)") as refused:
        rig.run()
    (statements,) = re.findall(r"Run (ALTER TABLE .*?) at the target", str(refused.value))
    execute(rig.target_dsn, *statements.split("; "))
    if _LEFT[recipe].endswith("(id)"):
        execute(rig.target_dsn, "CREATE UNIQUE INDEX ON t (id)")
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)
    rig.run()
    rig.write("UPDATE t SET v = 71 WHERE v::integer = 70")
    rig.run()
    assert_equal(rig)


@gated
def test_names_that_were_exchanged_are_so_before_what_is_left_to_a_person(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text, w uuid)")
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, i FROM generate_series(1, 9) i")
    rig.run()
    rig.write("ALTER TABLE t RENAME v TO x", "ALTER TABLE t RENAME w TO v", "ALTER TABLE t RENAME x TO w")
    rig.write("ALTER TABLE t ALTER w TYPE integer USING w::integer", "UPDATE t SET w = 70 WHERE w = 7")
    with pytest.raises(FatalError, match=r"column w of public\.t became integer") as refused:
        rig.run()
    (statements,) = re.findall(r"Run (ALTER TABLE .*?) at the target", str(refused.value))
    execute(rig.target_dsn, *statements.split("; "))
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)
    rig.run()
    assert_equal(rig)
