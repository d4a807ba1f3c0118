"""Expressions and types that were sent, where the target's columns have types of their own."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.ddl_messages import ddl, install
from tests.support.migrated_table import recopied
from tests.support.rig import Rig, execute, skip_as_the_hint_says
from tests.support.variants import gated, variants

COMPUTED = "b integer GENERATED ALWAYS AS (id) STORED"
READ = {
    "another column": ("a numeric, b integer", "ALTER b TYPE numeric USING a / 2", "a"),
    "its own": ("a integer, b numeric", "ALTER b TYPE bigint USING b / 2", "b"),
    "its own in casts": ("a integer, b numeric", "ALTER b TYPE numeric USING b::real::numeric", "b"),
    "one that is altered beside": (
        "a numeric, b integer",
        "ALTER a TYPE bigint, ALTER b TYPE numeric USING a / 2",
        "a",
    ),
}
ALIKE = {
    "wider integers": ("a bigint, b bigint", ["ALTER b TYPE numeric USING a + b / 2"]),
    "mere casts": (
        "a numeric, b numeric",
        ['ALTER b TYPE varchar(9) USING ("b"::text)::varchar(9), ALTER a TYPE bigint USING CAST(a AS bigint)'],
    ),
    "a type that was sent": ("a numeric, b integer", ["ALTER a TYPE numeric", "ALTER b TYPE numeric USING a / 2"]),
}


def begun_with(rig: Rig, here: str) -> None:
    install(rig.source_dsn)
    computed = COMPUTED if COMPUTED in here else "b integer"
    execute(rig.source_dsn, f"CREATE TABLE t (id integer PRIMARY KEY, a integer, {computed})")
    execute(rig.target_dsn, f"CREATE TABLE t (id integer PRIMARY KEY, {here})")
    rig.prepare()
    rig.write("INSERT INTO t (id, a) VALUES (1, 7)" if COMPUTED in here else "INSERT INTO t VALUES (1, 7, 7)")
    rig.run()


def send(rig: Rig, *actions: str) -> None:
    texts = [f"ALTER TABLE t {action}" for action in actions]
    rig.transaction(*(one for text in texts for one in (text, ddl(text))))


def assert_computed_alike(rig: Rig) -> None:
    rig.run()
    rig.write("INSERT INTO t VALUES (2, 8, 8)")
    rig.run()
    query = "SELECT concat(a)::numeric, concat(b)::numeric FROM t ORDER BY id"
    assert rig.rows(query) == rig.rows(query, side="source")


@gated
@pytest.mark.parametrize("case", READ)
def test_a_using_that_was_sent_reads_the_types_of_the_source(rig: Rig, case: str) -> None:
    here, action, column = READ[case]
    begun_with(rig, here)
    send(rig, action, *(["ALTER b DROP EXPRESSION"] if COMPUTED in here else []))
    what = rf"other values at the target: {column} of public\.t is numeric there and integer at the source"
    with pytest.raises(FatalError, match=what) as refused:
        rig.run()
    execute(rig.target_dsn, str(refused.value).partition("Hint: Run ")[2].partition(" at the target")[0])
    assert_computed_alike(rig)


@gated
@pytest.mark.parametrize("case", ALIKE)
def test_a_using_that_was_sent_may_read_types_that_make_no_difference(rig: Rig, case: str) -> None:
    here, actions = ALIKE[case]
    begun_with(rig, here)
    for action in actions:
        send(rig, action)
    assert_computed_alike(rig)


INSIDE = {
    "in arrays": ("a integer[], b text", "a numeric[]", "'{7}'", "(a[1] / 2)::text"),
    "under a domain": ("a code, b text", "a numeric", "'7'", "(a::text || a / 2)::text"),
    "as labels": ("a mood, b text", "a text", "'dull'", "(a > 'new')::text"),
    "behind a string with escapes": ("a integer, b text", "a numeric", "7", r"E'\';' || a / 2"),
    "behind a comment": ("a integer, b text", "a numeric", "7", "'x' /* /* */ ; */ || a / 2"),
    "behind words of a string": ("a integer, b text", "a numeric", "7", "concat(', alter ', a / 2)"),
    "in whole rows": ("a integer, b text", "a integer, ADD c integer", "7", "to_jsonb(t)::text"),
}
"""The source's columns, the target's other ones, a value of the first, and what the second becomes."""


@pytest.mark.parametrize("case", variants(INSIDE, gated=[*INSIDE][1:]))
def test_what_a_sent_using_reads_is_compared_wherever_it_reads_it(rig: Rig, case: str) -> None:
    columns, here, value, expression = INSIDE[case]
    install(rig.source_dsn)
    rig.both("CREATE DOMAIN code AS integer", "CREATE TYPE mood AS ENUM ('new', 'dull')")
    rig.both(f"CREATE TABLE t (id integer PRIMARY KEY, {columns})")
    execute(rig.target_dsn, f"ALTER TABLE t ALTER a TYPE {here.removeprefix('a ')}")
    rig.prepare()
    rig.write(f"INSERT INTO t VALUES (1, {value}, 'x')")
    rig.run()
    send(rig, f"ALTER b TYPE text USING {expression}")
    with pytest.raises(FatalError, match="would compute other values at the target") as refused:
        rig.run()
    recopied(rig)
    skip_as_the_hint_says(rig, refused.value)
    rig.write(f"INSERT INTO t VALUES (2, {value}, 'y')")
    rig.run()
    query = "SELECT id, concat(a), b FROM t ORDER BY id"
    assert rig.rows(query) == rig.rows(query, side="source")


@gated
@pytest.mark.parametrize("text", ["ALTER TABLE {} ALTER b TYPE text USING a / 2", "DO $$ BEGIN EXECUTE '{}'; END $$"])
def test_what_a_sent_using_reads_is_compared_in_tables_that_it_does_not_name(rig: Rig, text: str) -> None:
    install(rig.source_dsn)
    rig = rig.having(tables=TablePatterns(include=("public.child",)))
    rig.both("CREATE TABLE parent (id integer, a integer, b integer)")
    rig.both("CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)")
    execute(rig.target_dsn, "ALTER TABLE parent ALTER a TYPE numeric")
    rig.prepare()
    rig.write("INSERT INTO child VALUES (1, 7, 7)")
    rig.run()
    altering = "ALTER TABLE parent ALTER b TYPE text USING a / 2"
    sent = text.format("parent" if "{} ALTER" in text else altering.replace("parent", "par' || 'ent"))
    rig.transaction(sent, ddl(sent))
    with pytest.raises(FatalError, match=r"a of public\.child is numeric there and integer at the source") as refused:
        rig.run()
    execute(rig.target_dsn, str(refused.value).partition("Hint: Run ")[2].partition(" at the target")[0])
    rig.run()
    assert rig.rows("SELECT b FROM child") == rig.rows("SELECT b FROM child", side="source")


CAST = {
    "halves": ("double precision", "numeric", "2.5", "integer"),
    "blanks": ("varchar(5)", "char(5)", "'ab   '", "text"),
    "words": ("text", "boolean", "'t'", "varchar(9)"),
}
CAST_ALIKE = {
    "whole numbers": ("integer", "double precision", "7", "bigint"),
    "digits": ("numeric(10,2)", "numeric", "2.35", "numeric(10,1)"),
    "lengths": ("varchar(5)", "varchar(9)", "'ab '", "varchar(4)"),
    "a domain": ("code", "bigint", "7", "numeric"),
}
"""The source's type, the target's, a value, and the type that is sent."""


def sent_type(rig: Rig, old: str, here: str, value: str, new: str) -> None:
    install(rig.source_dsn)
    rig.both("CREATE DOMAIN code AS integer", f"CREATE TABLE t (id integer PRIMARY KEY, a {old})")
    execute(rig.target_dsn, f"ALTER TABLE t ALTER a TYPE {here} USING a::{here}")
    rig.prepare()
    rig.write(f"INSERT INTO t VALUES (1, {value})")
    rig.run()
    send(rig, f"ALTER a TYPE {new}")
    rig.write(f"INSERT INTO t VALUES (2, {value})")


def assert_alike(rig: Rig) -> None:
    query = "SELECT id, concat(a) FROM t ORDER BY id"
    assert rig.rows(query) == rig.rows(query, side="source")


@pytest.mark.parametrize("case", variants(CAST, gated=[*CAST][1:]))
def test_a_sent_type_to_which_the_target_s_own_is_cast_otherwise_asks_for_a_copy(rig: Rig, case: str) -> None:
    sent_type(rig, *CAST[case])
    with pytest.raises(FatalError, match=r"column a of public\.t became(?s:.*)recopy"):
        rig.run()
    recopied(rig).run()
    assert_alike(rig)


@gated
@pytest.mark.parametrize("case", CAST_ALIKE)
def test_a_sent_type_to_which_it_is_cast_alike_is_followed(rig: Rig, case: str) -> None:
    sent_type(rig, *CAST_ALIKE[case])
    rig.run()
    assert_alike(rig)


@gated
@pytest.mark.parametrize("new", ["bigint", "bigint USING a::bigint"])
def test_a_sent_type_that_the_target_s_own_is_not_cast_to_asks_for_the_source_s(rig: Rig, new: str) -> None:
    sent_type(rig, "numeric(8,2)", "text", "7.25", new)
    with pytest.raises(FatalError, match=r"a of public\.t is text there and numeric\(8,2\) at the source") as refused:
        rig.run()
    execute(rig.target_dsn, str(refused.value).partition("Hint: Run ")[2].partition(" at the target")[0])
    rig.run()
    assert_alike(rig)
