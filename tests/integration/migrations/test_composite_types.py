"""Attributes of a composite type that come or go at the source change what older rows print, and no row is sent."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.ddl_messages import ddl, install
from tests.support.rig import Rig, execute
from tests.support.variants import gated

_AGAIN = ("ALTER TYPE pair DROP ATTRIBUTE t", "ALTER TYPE pair ADD ATTRIBUTE t text")
_MORE = ("ALTER TYPE pair ADD ATTRIBUTE more integer CASCADE",)


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig.both(
        "CREATE TYPE pair AS (n integer, t text)",
        "CREATE DOMAIN coupled AS pair",
        "CREATE TABLE t (id integer PRIMARY KEY, p pair)",
        "CREATE TABLE u (id integer PRIMARY KEY, ps coupled[])",
        "CREATE TABLE v (id integer PRIMARY KEY)",
    )
    rig.prepare()
    rig.write(
        "INSERT INTO t VALUES (1, '(1,x)'), (2, NULL)",
        "INSERT INTO u VALUES (1, ARRAY[ROW(1, 'x')::coupled])",
        "INSERT INTO v VALUES (1)",
    )
    rig.run()
    return rig


def assert_equal(rig: Rig) -> None:
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
@pytest.mark.parametrize("statements", [_AGAIN, pytest.param(_MORE, marks=pytest.mark.long)])
def test_it_stops_the_run_until_the_target_has_them_too(rig: Rig, statements: tuple[str, ...]) -> None:
    rig.write(*statements, "DELETE FROM t WHERE id = 2", "INSERT INTO v VALUES (2)")
    told = r"attributes of a composite type in public\.t .*: pair.*public\.u(?s:.*)the same ALTER TYPE(?s:.*)recopy"
    with pytest.raises(FatalError, match=told) as refused:
        rig.run()
    assert "public.v" not in str(refused.value)
    execute(rig.target_dsn, *statements)
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t"), ("public", "u")], report=lambda progress: None)
    rig.write("UPDATE t SET p.t = 'z'")
    rig.run()
    assert_equal(rig)


@gated
def test_an_attribute_that_came_and_went_while_rows_were_written_stops_the_run(rig: Rig) -> None:
    execute(rig.target_dsn, "ALTER TABLE t ALTER COLUMN p TYPE text")
    rig.write(*_MORE, "INSERT INTO t VALUES (3, '(3,z,5)')", "ALTER TYPE pair DROP ATTRIBUTE more CASCADE")
    with pytest.raises(FatalError, match=r"attributes of a composite type in public\.t .*: pair"):
        rig.run()
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t"), ("public", "u")], report=lambda progress: None)
    rig.run()
    assert rig.rows("SELECT p FROM t WHERE id = 3") == [("(3,z)",)]


def test_it_is_followed_where_it_is_sent(rig: Rig) -> None:
    install(rig.source_dsn)
    rig.transaction(*_MORE, ddl(_MORE[0]), "UPDATE t SET p.more = 5")
    rig.run()
    assert_equal(rig)


@gated
def test_a_table_whose_rows_are_values_is_followed_where_it_is_sent(rig: Rig) -> None:
    install(rig.source_dsn)
    rig.both("CREATE TABLE pairs (n integer PRIMARY KEY)", "CREATE TABLE x (id integer PRIMARY KEY, p pairs)")
    rig.run()
    rig.write("INSERT INTO x VALUES (1, '(1)')")
    rig.run()
    more = "ALTER TABLE pairs ADD more integer"
    rig.transaction(more, ddl(more), "INSERT INTO x VALUES (2, '(2,5)')")
    rig.run()
    assert_equal(rig)


@pytest.mark.long
def test_one_run_takes_the_word_of_somebody_who_did_it_at_the_target(rig: Rig) -> None:
    rig.write(*_AGAIN)
    execute(rig.target_dsn, *_AGAIN)
    rig.having(ddl=DdlPolicy.SKIP).run()
    rig.write("UPDATE t SET p.t = 'z'")
    rig.run()
    assert_equal(rig)


@pytest.mark.long
def test_another_name_of_an_attribute_changes_nothing(rig: Rig) -> None:
    rig.write("ALTER TYPE pair RENAME ATTRIBUTE t TO s CASCADE", "UPDATE t SET p.s = 'z'")
    rig.run()
    assert_equal(rig)


@gated
def test_another_name_of_a_type_is_told_by_check_and_followed_by_hand(rig: Rig) -> None:
    rig.write("ALTER TYPE pair RENAME TO couple", "UPDATE t SET p.t = 'z' WHERE id = 1")
    with pytest.raises(FatalError, match=r"became public\.couple(?s:.*)parallel-apply check"):
        rig.run()
    found = [one for one in check_pipeline(rig.config, rig.source, rig.target).findings if "pair" in one.what]
    assert [one.what for one in found] == [
        "the source has no type public.pair any more, which it calls public.couple now"
    ]
    execute(rig.target_dsn, *found[0].fix)
    rig.run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TYPE pair RENAME TO couple",),
        pytest.param(
            (
                'CREATE SCHEMA "An app"',
                'ALTER TYPE pair SET SCHEMA "An app"',
                'ALTER TYPE "An app".pair RENAME TO "A.pair"',
                "ALTER TABLE t ADD more integer",
            ),
            marks=pytest.mark.long,
        ),
    ],
)
def test_another_name_of_a_type_takes_no_more_at_the_target_than_the_hint_says(
    rig: Rig, statements: tuple[str, ...]
) -> None:
    rig.write(*statements, "UPDATE t SET p.t = 'z' WHERE id = 1")
    with pytest.raises(FatalError, match=r"lacks the type public\.couple|An app") as refused:
        rig.run()
    told = re.search(r"run (ALTER TYPE .*|CREATE SCHEMA .*) at the target, then run again: no", str(refused.value))
    assert told is not None, refused.value
    execute(rig.target_dsn, *told[1].split("; "))
    rig.run()
    assert_equal(rig)
