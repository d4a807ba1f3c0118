"""Computed columns that are dropped or replaced, with or without what they are computed of; copies of their tables."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.ddl_messages import install
from tests.support.migrated_table import COMPUTED, PLAIN, ROWS, assert_equal, begin, recopied
from tests.support.rig import Rig, execute
from tests.support.variants import gated, variants

REPLACED = {
    "dropped": ["ALTER TABLE t DROP b, ADD b integer GENERATED ALWAYS AS (id + 1) STORED"],
    "renamed": ["ALTER TABLE t RENAME b TO c", "ALTER TABLE t ADD b integer GENERATED ALWAYS AS (id + 1) STORED"],
}


@gated
@pytest.mark.parametrize("recipe", variants(REPLACED, seldom=["renamed"]))
@pytest.mark.parametrize("ddl", [DdlPolicy.REFUSE, pytest.param(DdlPolicy.APPLY, marks=pytest.mark.long)])
def test_a_computed_column_that_takes_a_plain_one_s_name_is_followed(rig: Rig, recipe: str, ddl: DdlPolicy) -> None:
    begin(rig, *PLAIN)
    install(rig.source_dsn)
    rig = rig.having(ddl=ddl)
    rig.write(*REPLACED[recipe], "INSERT INTO t (id, a) VALUES (99, 'x')", "DELETE FROM t WHERE id < 5")
    for _ in range(2 if ddl is DdlPolicy.REFUSE else 0):
        with pytest.raises(FatalError, match=r"column b of public\.t was (dropped|renamed|added as)") as told:
            rig.run()
        execute(rig.target_dsn, str(told.value).partition("the source's (")[2].partition("), then run")[0])
    rig.run()
    assert_equal(rig)


@gated
def test_a_copy_waits_for_the_targets_computed_columns(rig: Rig) -> None:
    begin(rig, COMPUTED)
    alter = "ALTER TABLE t ALTER g SET EXPRESSION AS (b * 3), ADD h integer GENERATED ALWAYS AS (b) STORED"
    rig.write(alter)
    with pytest.raises(FatalError, match=r"ADD COLUMN \"h\".*SET EXPRESSION AS \(\(b \* 3\)\)"):
        recopied(rig)
    recopied(rig, alter).run()
    assert_equal(rig)


@gated
def test_a_copy_asks_for_plain_columns_before_those_that_are_computed_of_them(rig: Rig) -> None:
    begin(rig, COMPUTED)
    rig.write("ALTER TABLE t ADD c integer", "ALTER TABLE t ADD h integer GENERATED ALWAYS AS (c + 1) STORED")
    with pytest.raises(FatalError, match="lacks the column c") as told:
        recopied(rig)
    execute(rig.target_dsn, *re.findall(r"ALTER TABLE .*?(?=;|\.$)", str(told.value)))
    recopied(rig).run()
    assert_equal(rig)


@pytest.mark.parametrize("ddl", [DdlPolicy.APPLY, pytest.param(DdlPolicy.REFUSE, marks=pytest.mark.long)])
def test_a_computed_column_that_alone_is_dropped_is_so_at_the_target(rig: Rig, ddl: DdlPolicy) -> None:
    begin(rig, COMPUTED)
    rig.write("ALTER TABLE t DROP g", "DELETE FROM t WHERE id < 5")
    if ddl is DdlPolicy.REFUSE:
        with pytest.raises(FatalError, match=r"column g of public\.t was dropped(?s:.*)DROP COLUMN \"g\""):
            rig.having(ddl=ddl).run()
        execute(rig.target_dsn, "ALTER TABLE t DROP g")
    rig.having(ddl=ddl).run()
    assert_equal(rig)
    assert rig.rows("SELECT FROM pg_attribute WHERE attrelid = 't'::regclass AND attname = 'g'") == []


@pytest.mark.long
def test_a_table_that_is_gone_says_nothing_of_what_it_computed(rig: Rig) -> None:
    rig.both("CREATE TABLE u (id integer PRIMARY KEY)")
    begin(rig, COMPUTED)
    rig.write("DELETE FROM t WHERE id < 5", "DROP TABLE t")
    rig.having(ddl=DdlPolicy.REFUSE).run()
    assert rig.rows("SELECT count(*) FROM t WHERE id < 5") == [(0,)]


@gated
@pytest.mark.parametrize("ddl", [DdlPolicy.APPLY, pytest.param(DdlPolicy.REFUSE, marks=pytest.mark.long)])
def test_a_column_that_another_was_computed_of_is_dropped_with_it(rig: Rig, ddl: DdlPolicy) -> None:
    begin(rig, COMPUTED)
    rig.write("ALTER TABLE t DROP b CASCADE", "DELETE FROM t WHERE id < 5")
    if ddl is DdlPolicy.REFUSE:
        with pytest.raises(FatalError, match=r"column g of public\.t was dropped(?s:.*)DROP COLUMN \"g\""):
            rig.having(ddl=ddl).run()
        execute(rig.target_dsn, "ALTER TABLE t DROP b CASCADE")
    rig.having(ddl=ddl).run()
    assert_equal(rig)
    left = "SELECT attname FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0 AND NOT attisdropped"
    assert rig.rows(left) == [("id",), ("a",)]


@gated
def test_a_column_that_was_computed_of_one_that_passed_its_name_on_is_dropped_with_it(rig: Rig) -> None:
    install(rig.source_dsn)
    rig.both(COMPUTED)
    rig.prepare()
    rig.write(ROWS, "ALTER TABLE t ADD c bigint NOT NULL DEFAULT 0", "UPDATE t SET c = b")
    rig.write("ALTER TABLE t RENAME b TO old", "ALTER TABLE t RENAME c TO b", "ALTER TABLE t DROP old CASCADE")
    rig.write("DELETE FROM t WHERE id < 5")
    rig.run()
    assert_equal(rig)


@gated
def test_what_the_target_makes_of_a_dropped_column_is_named(rig: Rig) -> None:
    begin(rig, *PLAIN)
    execute(rig.target_dsn, "CREATE VIEW ours AS SELECT b FROM t")
    rig.write("ALTER TABLE t DROP b", "DELETE FROM t WHERE id < 5")
    with pytest.raises(FatalError, match=r"column b of public\.t was dropped(?s:.*)view (public\.)?ours depends on"):
        rig.run()
    execute(rig.target_dsn, "DROP VIEW ours")
    rig.run()
    assert_equal(rig)
