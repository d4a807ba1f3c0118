"""Children that a first run makes have their columns from their parents, as at the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, TablePatterns
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.copying import copying_rig, require_equal
from tests.support.rig import Rig, execute
from tests.support.variants import gated

_TABLES = (
    "CREATE TABLE zoo (id integer PRIMARY KEY, v text DEFAULT 'x' CHECK (v <> ''), n serial)",
    "CREATE TABLE other (o integer NOT NULL, g integer GENERATED ALWAYS AS (o * 2) STORED)",
    "CREATE TABLE a_child (PRIMARY KEY (id), extra text, own text CHECK (own <> '')) INHERITS (zoo, other)",
    "CREATE TABLE a_below (PRIMARY KEY (id)) INHERITS (a_child)",
    "CREATE TABLE with_default (PRIMARY KEY (id)) INHERITS (zoo)",
    "ALTER TABLE with_default ALTER v SET DEFAULT 'y'",
    "CREATE TABLE joined (id integer PRIMARY KEY, v text DEFAULT 'x', n integer NOT NULL)",
    "ALTER TABLE joined ADD CONSTRAINT zoo_v_check CHECK (v <> '')",
    "ALTER TABLE joined INHERIT zoo",
    "CREATE TABLE above (i integer)",
    "CREATE TABLE below () INHERITS (above)",
    "ALTER TABLE below ADD CONSTRAINT known CHECK (i > 0)",
    "ALTER TABLE above ADD CONSTRAINT known CHECK (i > 0) NOT VALID",
)
_LOCAL = (
    "SELECT attrelid::regclass::text, attname, attislocal, attinhcount, attnotnull, pg_get_expr(adbin, adrelid) "
    "FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum "
    "WHERE attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r') "
    "AND attnum > 0 AND NOT attisdropped ORDER BY 1, 2"
)
_CHECKS = (
    "SELECT conrelid::regclass::text, conname, conislocal, coninhcount, pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE contype = 'c' AND connamespace = 'public'::regnamespace ORDER BY 1, 2"
)
KEY_SWAP = (
    "ALTER TABLE zoo ADD COLUMN id_new bigint",
    "UPDATE zoo SET id_new = id",
    "ALTER TABLE zoo ALTER COLUMN id_new SET NOT NULL",
    "CREATE UNIQUE INDEX zoo_new ON ONLY zoo (id_new)",
    "ALTER TABLE zoo DROP CONSTRAINT zoo_pkey",
    "ALTER TABLE zoo DROP COLUMN id CASCADE",
    "ALTER TABLE zoo RENAME COLUMN id_new TO id",
    "ALTER TABLE zoo ADD PRIMARY KEY USING INDEX zoo_new",
)


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return copying_rig(source_dsn, target_dsn, tmp_path, monkeypatch).having(ddl=DdlPolicy.APPLY, create_tables=True)


@gated
def test_columns_and_checks_are_inherited_where_they_are_at_the_source(rig: Rig) -> None:
    execute(rig.source_dsn, *_TABLES)
    rig.write("INSERT INTO a_child (id, o, extra) VALUES (1, 1, 'a')", "INSERT INTO zoo (id) VALUES (2)")
    rig.run()
    require_equal(rig)
    here = [row for row in rig.rows(_LOCAL, side="source") if row[:2] != ("with_default", "v")]
    there = [row for row in rig.rows(_LOCAL) if row[:2] != ("with_default", "v")]
    assert there == here
    assert rig.rows(_CHECKS) == rig.rows(_CHECKS, side="source")
    rig.write("INSERT INTO a_below (id, o) VALUES (3, 3)", "UPDATE with_default SET v = 'z'")
    rig.run()
    require_equal(rig)


def test_a_child_without_its_parent_is_made_as_a_table_of_its_own(rig: Rig) -> None:
    execute(rig.source_dsn, *_TABLES)
    rig.write("INSERT INTO a_child (id, o, extra) VALUES (1, 1, 'a')")
    rig = rig.having(tables=TablePatterns(include=("public.a_*", "public.zoo")))
    rig.run()
    require_equal(rig)
    assert rig.rows("SELECT inhrelid::regclass::text, inhparent::regclass::text FROM pg_inherits ORDER BY 1, 2") == [
        ("a_below", "a_child"),
        ("a_child", "zoo"),
    ]


@gated
def test_a_parent_whose_rows_are_its_childrens_is_copied_as_an_empty_table(rig: Rig) -> None:
    rig.both("CREATE TYPE mood AS ENUM ('sad')", "CREATE DOMAIN small AS integer CHECK (VALUE < 10)")
    execute(
        rig.source_dsn,
        _TABLES[0],
        "CREATE TABLE a_child (PRIMARY KEY (id), of small) INHERITS (zoo)",
        "CREATE ACCESS METHOD other_heap TYPE TABLE HANDLER heap_tableam_handler",
        "CREATE TABLE park (id integer) USING other_heap",
        "CREATE TABLE part_of_park () INHERITS (park)",
    )
    rig.write("INSERT INTO a_child (id, of) VALUES (1, 1)", "INSERT INTO part_of_park VALUES (1)")
    rig.run()
    require_equal(rig)


@gated
def test_a_key_that_is_exchanged_for_a_wider_one_is_followed_in_the_children(rig: Rig) -> None:
    execute(rig.source_dsn, *_TABLES[:1], "CREATE TABLE a_child (PRIMARY KEY (id), extra text) INHERITS (zoo)")
    rig.write("INSERT INTO zoo (id) VALUES (1), (2)", "INSERT INTO a_child (id) VALUES (3)")
    rig.run()
    rig.write(*KEY_SWAP[:4])
    rig.run()
    rig.write(*KEY_SWAP[4:], "UPDATE ONLY zoo SET v = 'w'", "INSERT INTO a_child (id) VALUES (5)")
    rig.run()
    require_equal(rig)


def test_a_copy_that_was_cut_off_is_begun_again_though_its_tables_inherit_nothing_yet(rig: Rig) -> None:
    """Where the target had the parent before, children are tied to it behind the load."""
    execute(rig.source_dsn, *_TABLES[:3])
    execute(rig.target_dsn, _TABLES[0], "CREATE UNIQUE INDEX only_here ON zoo (v)")
    rig.write("INSERT INTO a_child (id, o, extra) VALUES (1, 1, 'a')", "INSERT INTO zoo (id) VALUES (2), (3)")
    with pytest.raises(FatalError, match="duplicate key"):
        rig.run()
    execute(rig.target_dsn, "DROP INDEX only_here")
    rig.run()
    require_equal(rig)
    assert ("a_child", "zoo") in rig.rows("SELECT inhrelid::regclass::text, inhparent::regclass::text FROM pg_inherits")
