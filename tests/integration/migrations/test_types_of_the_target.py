"""A column that has another type at the target, and gets a new one at the source: the target has nothing to cast."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.ddl_messages import ddl, install
from tests.support.migrated_table import recopied
from tests.support.rig import Rig, execute
from tests.support.variants import gated, variants

TYPES = {
    "blanks": ("char(5)", "text", "varchar(9)", "'ab'"),
    "digits": ("real", "double precision", "double precision", "0.1"),
    "words": ("boolean", "varchar(9)", "text", "true"),
}
"""The source's type, the target's, the source's new one, and a value."""


def begun(rig: Rig, types: str) -> tuple[Rig, str, str]:
    old, here, new, value = TYPES[types]
    install(rig.source_dsn)
    execute(rig.source_dsn, f"CREATE TABLE t (id integer PRIMARY KEY, c {old})")
    execute(rig.target_dsn, f"CREATE TABLE t (id integer PRIMARY KEY, c {here})")
    rig.prepare()
    rig.write(f"INSERT INTO t VALUES (1, {value}), (2, NULL)")
    rig.run()
    return rig, new, value


def assert_same_texts(rig: Rig) -> None:
    query = "SELECT id, concat(c) FROM t ORDER BY id"
    assert rig.rows(query) == rig.rows(query, side="source")


@pytest.mark.parametrize("types", variants(TYPES, seldom=["digits"], gated=["words"]))
def test_older_values_that_a_cast_prints_otherwise_stop_the_run(rig: Rig, types: str) -> None:
    rig, new, value = begun(rig, types)
    rig.write(f"ALTER TABLE t ALTER c TYPE {new}", f"INSERT INTO t VALUES (3, {value})")
    with pytest.raises(FatalError, match=r"column c of public\.t became") as refused:
        rig.run()
    update = re.search(r"rows are the source's \((.*?)\), then run again", str(refused.value))
    assert update is not None, str(refused.value)
    execute(rig.target_dsn, *update[1].split("; "))
    rig.run()
    assert_same_texts(rig)


@gated
def test_a_message_casts_none_of_them(rig: Rig) -> None:
    rig, new, value = begun(rig, "blanks")
    alter = f"ALTER TABLE t ALTER c TYPE {new}"
    rig.transaction(alter, ddl(alter), f"INSERT INTO t VALUES (3, {value})")
    with pytest.raises(FatalError, match=r"column c of public\.t became"):
        rig.run()


@gated
def test_those_of_a_copy_are_the_source_s(rig: Rig) -> None:
    rig, new, _ = begun(rig, "blanks")
    rig.write(f"ALTER TABLE t ALTER c TYPE {new}", "INSERT INTO t VALUES (3, 'cd  ')")
    rig = recopied(rig)
    rig.write("INSERT INTO t VALUES (4, 'ef  ')")
    rig.run()
    assert_same_texts(rig)


USINGS = {
    "numbers": ("real", "double precision", "g::text::double precision", "0.1"),
    "texts": ("varchar(5)", "text", "'prefix-' || g", "'ab'"),
}


@pytest.mark.parametrize("using", variants(USINGS, gated=["texts"]))
def test_what_a_sent_using_has_made_stays(rig: Rig, using: str) -> None:
    old, new, expression, value = USINGS[using]
    install(rig.source_dsn)
    rig.both(f"CREATE TABLE t (id integer PRIMARY KEY, g {old})")
    rig.prepare()
    rig.write(f"INSERT INTO t VALUES (1, {value}), (2, NULL)")
    rig.run()
    alter = f"ALTER TABLE t ALTER g TYPE {new} USING {expression}"
    rig.transaction(alter, ddl(alter), f"INSERT INTO t VALUES (3, {value})")
    rig.run()
    query = "SELECT id, concat(g) FROM t ORDER BY id"
    assert rig.rows(query) == rig.rows(query, side="source")
