"""Columns that the source computes, and that got another type there."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.ddl_messages import ddl, install
from tests.support.migrated_table import ROWS, assert_equal, begin, recopied
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated, variants

_TABLE = "CREATE TABLE t (id integer PRIMARY KEY, a text, b integer, g {} GENERATED ALWAYS AS ({}) STORED)"
_ROW = "INSERT INTO t (id, a, b) VALUES (99, 'x', 5)"
_TYPE = "ALTER TABLE t ALTER g TYPE numeric(8,2)"


def refused(rig: Rig, *, match: str = r"column g of public\.t is computed otherwise") -> dict[str, str]:
    """Run into the refusal. Returns the statements of its hint, for either side."""
    with pytest.raises(FatalError, match=match) as told:
        rig.run()
    hint = str(told.value)
    source = re.search(r"run (ALTER TABLE .*?) at the source", hint)
    target = re.search(r"the source's \((ALTER TABLE .*?)\), then run again", hint)
    return {side: found[1] for side, found in (("source", source), ("target", target)) if found is not None}


ALIKE = {
    "integer": ("integer", "b * 2", "ALTER TABLE t ALTER g TYPE bigint"),
    "numeric": ("numeric(6,2)", "b * 2.345", "ALTER TABLE t ALTER g TYPE numeric(9,2)"),
    "text": ("character varying(5)", "'ab  '", "ALTER TABLE t ALTER g TYPE text"),
    "expression": ("integer", "b * 2", "ALTER TABLE t ALTER g TYPE bigint, ALTER g SET EXPRESSION AS (b::bigint * 3)"),
}


@pytest.mark.parametrize("types", variants(ALIKE, seldom=["text"], gated=["numeric", "expression"]))
def test_a_type_under_which_values_are_what_they_were_is_the_targets_too(rig: Rig, types: str) -> None:
    type_name, expression, alter = ALIKE[types]
    begin(rig, _TABLE.format(type_name, expression))
    rig.write(_ROW, alter, "UPDATE t SET b = 7 WHERE id < 5")
    with pytest.raises(FatalError, match=r"column g of public\.t (became|is computed otherwise)"):
        rig.having(ddl=DdlPolicy.REFUSE).run()
    rig.run()
    assert_equal(rig)
    query = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 't'::regclass AND attname = 'g'"
    assert rig.rows(query) == rig.rows(query, side="source")


RECIPES = {
    "with rows of before": [_ROW, _TYPE, "UPDATE t SET b = 7 WHERE id < 5"],
    "computed anew": [f"{_TYPE}, ALTER g SET EXPRESSION AS (b * 2.345)", _ROW],
}


@pytest.mark.parametrize("with_trigger", [False, pytest.param(True, marks=GATED)])
@pytest.mark.parametrize("recipe", variants(RECIPES, seldom=[], gated=["computed anew"]))
def test_a_type_to_which_the_source_has_cast_values_is_followed_by_both_sides_that_compute_anew(
    rig: Rig, recipe: str, with_trigger: bool
) -> None:
    """The source casts older values, those that are still to be sent included."""
    if with_trigger:
        install(rig.source_dsn)
    begin(rig, _TABLE.format("integer", "b * 2.345"))
    rig.write(*RECIPES[recipe])
    hinted = refused(rig)
    execute(rig.source_dsn, hinted["source"])
    execute(rig.target_dsn, hinted["target"])
    rig.run()
    assert_equal(rig)


WAYS = {"taken as done": DdlPolicy.SKIP, "copied": DdlPolicy.REFUSE}


@pytest.mark.parametrize("way", variants(WAYS, gated=["taken as done"]))
def test_that_the_source_computes_anew_is_told_wherever_the_targets_column_is_made_again(rig: Rig, way: str) -> None:
    begin(rig, _TABLE.format("integer", "b * 2.345"))
    rig.write(_TYPE, _ROW)
    with pytest.raises(FatalError, match="the target computes the column by another expression") as refused:
        recopied(rig) if way == "copied" else rig.having(ddl=WAYS[way]).run()
    at_source = re.search(
        r"run (ALTER TABLE \S+ ALTER COLUMN \S+ SET EXPRESSION .*?) at the source", str(refused.value)
    )
    at_target = re.search(r"Run (ALTER TABLE .*?)(?: at the target|\. Where)", str(refused.value))
    assert at_source is not None, refused.value
    assert at_target is not None, refused.value
    execute(rig.source_dsn, at_source[1])
    execute(rig.target_dsn, at_target[1])
    if way == "copied":
        recopied(rig)
    rig.run()
    assert_equal(rig)


@gated
def test_a_type_that_comes_with_a_row_of_a_child_is_its_parents(rig: Rig) -> None:
    rig.both(_TABLE.format("integer", "b * 2"), "CREATE TABLE k (PRIMARY KEY (id)) INHERITS (t)")
    rig.prepare()
    alter = "ALTER TABLE t ALTER g TYPE bigint"
    rig.write("INSERT INTO k (id, b) VALUES (1, 1)", alter, "INSERT INTO k (id, b) VALUES (2, 5)")
    refused(
        rig, match=r"column g of public\.k became bigint(?s:.*)column from public\.t\..*\"t\" ALTER COLUMN \"g\" TYPE"
    )
    execute(rig.target_dsn, alter)
    rig.run()
    assert_equal(rig)


BACK = {"at once": False, "between runs": True}


@gated
def test_a_type_of_a_computed_column_that_is_sent_twice_tells_of_no_other_one(rig: Rig) -> None:
    install(rig.source_dsn)
    begin(rig, _TABLE.format("numeric(8,2)", "b * 2.345"))
    back = "ALTER TABLE t ALTER g TYPE numeric(8,2)"
    rig.write("ALTER TABLE t ALTER g TYPE numeric(8,0)")
    for _ in range(2):
        rig.transaction(back, ddl(back))
    rig.write(_ROW)
    refused(rig, match=r"other types in between.*: g \(numeric\(8,2\), numeric\(8,0\), .*SET EXPRESSION.*recopy")


@gated
@pytest.mark.parametrize("with_run", variants(BACK, seldom=["at once"]))
def test_a_type_that_a_computed_column_had_in_between_is_computed_anew_and_copied(rig: Rig, with_run: str) -> None:
    install(rig.source_dsn)
    begin(rig, _TABLE.format("numeric(8,2)", "b * 2.345"))
    first, second = (f"ALTER TABLE t ALTER g TYPE numeric(8,{digits})" for digits in (0, 2))
    rig.write(first)
    if BACK[with_run]:
        rig.run()
    rig.write(_ROW, second)
    refused(rig, match=r"other types in between.*: g \(numeric\(8,2\), numeric\(8,0\), .*SET EXPRESSION.*recopy")
    execute(rig.source_dsn, "ALTER TABLE t ALTER g SET EXPRESSION AS (b * 2.345)")
    recopied(rig).run()
    rig.write("UPDATE t SET b = 7 WHERE id < 5")
    rig.run()
    assert_equal(rig)


KINDS = {"both": ("VIRTUAL", "VIRTUAL"), "source": ("VIRTUAL", "STORED"), "target": ("STORED", "VIRTUAL")}


@gated
@pytest.mark.parametrize("kinds", variants(KINDS, seldom=["both"]))
def test_a_virtual_column_of_another_type_has_nothing_that_is_cast(rig: Rig, kinds: str) -> None:
    install(rig.source_dsn)
    for dsn, kind in zip((rig.source_dsn, rig.target_dsn), KINDS[kinds], strict=True):
        execute(dsn, _TABLE.format("numeric(8,4)", "b * 2.3456").replace("STORED", kind))
    rig.prepare()
    rig.write(ROWS)
    rig.run()
    rig.write(_TYPE, "ALTER TABLE t ALTER a TYPE varchar(50)", _ROW)
    rig = rig.having(ddl=DdlPolicy.APPLY)
    if kinds == "target":
        hinted = refused(rig)
        execute(rig.source_dsn, hinted["source"])
        execute(rig.target_dsn, hinted["target"])
    rig.run()
    assert_equal(rig)


@gated
def test_a_virtual_column_that_is_made_again_with_a_type_of_no_cast_is_made_again_at_the_target(rig: Rig) -> None:
    begin(rig, _TABLE.format("text", "a").replace("STORED", "VIRTUAL"))
    rig.write("ALTER TABLE t DROP g, ADD g integer GENERATED ALWAYS AS (b) VIRTUAL", _ROW)
    rig.run()
    assert_equal(rig)


@gated
def test_a_computed_column_that_is_made_again_with_another_type_is_left_to_a_person(rig: Rig) -> None:
    begin(rig, _TABLE.format("integer", "b * 2"))
    rig.write(
        "ALTER TABLE t DROP g, ADD g numeric(8,2) GENERATED ALWAYS AS (b * 2) STORED", "DELETE FROM t WHERE id < 5"
    )
    execute(rig.target_dsn, refused(rig)["target"])
    rig.run()
    assert_equal(rig)


@pytest.mark.parametrize("ddl", [DdlPolicy.APPLY, pytest.param(DdlPolicy.REFUSE, marks=GATED)])
def test_a_column_that_is_made_again_around_the_type_of_one_that_it_reads_is_so_at_the_target(
    rig: Rig, ddl: DdlPolicy
) -> None:
    install(rig.source_dsn)
    begin(rig, _TABLE.format("integer", "b * 2"))
    rig = rig.having(ddl=ddl)
    rig.write(
        _ROW,
        "ALTER TABLE t DROP g, ALTER b TYPE bigint, ADD g bigint GENERATED ALWAYS AS (b * 2) STORED",
        "INSERT INTO t (id, a, b) VALUES (100, 'x', 5000000000)",
    )
    for _ in range(3 if ddl is DdlPolicy.REFUSE else 0):
        execute(rig.target_dsn, refused(rig, match=r"column [bg] of public\.t")["target"])
    rig.run()
    assert_equal(rig)
