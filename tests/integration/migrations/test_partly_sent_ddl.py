"""A transaction that sends some of its DDL sends no more than that: what it does beside is told by nothing."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.ddl_messages import ddl, install
from tests.support.rig import Rig, execute, skip_as_the_hint_says
from tests.support.variants import gated, variants

_UNSENT = {
    "values": (
        "ALTER TABLE t ALTER x TYPE bigint USING x * 2",
        "ALTER TABLE t ALTER y TYPE varchar(50)",
        r"public\.t was rewritten while x",
    ),
    "values of a namesake": (
        "ALTER TABLE t ALTER x TYPE bigint USING x * 2",
        "ALTER TABLE other ALTER x TYPE bigint",
        r"public\.t was rewritten while x",
    ),
    "values of a name in small letters": (
        "ALTER TABLE t ALTER x TYPE bigint USING x * 2",
        'ALTER TABLE t ALTER "X" TYPE bigint',
        r"public\.t was rewritten while x",
    ),
    "a column called type": (
        "ALTER TABLE t ALTER type TYPE bigint USING type * 2",
        "CREATE INDEX ON other (type)",
        r"public\.t was rewritten while type",
    ),
    "a label": (
        "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
        "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
        r"labels of an enum in public\.t .*: sad",
    ),
    "a label of a namesake": (
        "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
        "ALTER TYPE other_mood RENAME VALUE 'sad' TO 'blue'",
        r"labels of an enum in public\.t .*: sad",
    ),
    "an attribute": (
        "ALTER TYPE pair DROP ATTRIBUTE a",
        "ALTER TYPE pair ADD ATTRIBUTE c integer",
        r"attributes of a composite type in public\.t .*: pair",
    ),
    "one attribute of two": (
        "ALTER TYPE pair DROP ATTRIBUTE a",
        "ALTER TYPE pair DROP ATTRIBUTE b",
        r"attributes of a composite type in public\.t .*: pair",
    ),
    "a parent": (
        "ALTER TABLE other INHERIT parent",
        "ALTER TABLE t INHERIT parent",
        r"public\.other inherits from public\.parent",
    ),
    "a new type": (
        "ALTER TYPE young RENAME VALUE 'sad' TO 'blue'",
        "ALTER TYPE other_mood RENAME VALUE 'sad' TO 'blue'",
        r"types that public\.t has not used before were altered .*: young",
    ),
}

_RENAMED = {
    "a type": ("ALTER TYPE mood RENAME VALUE 'sad' TO E'blue'", "ALTER TYPE mood RENAME TO feeling"),
    "a composite type": ("ALTER TYPE pair ADD ATTRIBUTE c integer", "ALTER TYPE pair RENAME TO couple"),
    "a new type": (
        "CREATE TYPE young AS ENUM ('sad'); ALTER TABLE t ADD z young",
        "ALTER TYPE young RENAME VALUE 'sad' TO 'blue'",
        "ALTER TYPE young RENAME TO old",
    ),
    "a table": ("ALTER TABLE other RENAME TO another", "ALTER TABLE another INHERIT parent"),
}


@pytest.fixture
def rig(rig: Rig) -> Rig:
    columns = '(id integer PRIMARY KEY, m mood, p pair, x integer, y text, type integer, "X" integer)'
    rig.both(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TYPE other_mood AS ENUM ('sad', 'ok')",
        "CREATE TYPE pair AS (a integer, b integer, d integer)",
        "CREATE TABLE parent (id integer)",
        f"CREATE TABLE t {columns}",
        f"CREATE TABLE other {columns}",
    )
    install(rig.source_dsn)
    rig.write(*(f"DROP EVENT TRIGGER parallel_apply_capture_{name}" for name in ("ddl", "rewrite")))
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'sad', '(1,2,3)', 3, 'a', 5), (2, 'ok', NULL, 4, 'b', 6)")
    rig.run()
    return rig


@pytest.mark.parametrize(
    "what",
    variants(_UNSENT, seldom=("values", "a column called type", "a label of a namesake", "an attribute", "a parent")),
)
def test_what_is_not_sent_stops_the_run(rig: Rig, what: str) -> None:
    unsent, sent, told = _UNSENT[what]
    if what == "a new type":
        new = "CREATE TYPE young AS ENUM ('sad')", "ALTER TABLE t ADD z young"
        rig.both(*new)
        rig.write("INSERT INTO t (id, z) VALUES (3, 'sad')")
    rig.transaction(unsent, sent, ddl(sent), "INSERT INTO other (id) VALUES (1)")
    with pytest.raises(FatalError, match=told):
        rig.run()


@gated
@pytest.mark.parametrize("schema", variants(["public", "shop"], gated=["shop"]))
def test_one_statement_that_is_sent_tells_one_of_two(rig: Rig, schema: str) -> None:
    """The column is retyped twice; or another table of the same name is."""
    install(rig.source_dsn)
    rig.both("CREATE SCHEMA shop", "CREATE TABLE shop.t (id integer PRIMARY KEY, x integer)")
    rig.run()
    rig.write("INSERT INTO shop.t VALUES (1, 1)")
    unsent, sent = "ALTER TABLE t ALTER x TYPE bigint USING x * 2", f"ALTER TABLE {schema}.t ALTER x TYPE numeric"
    rig.transaction(unsent, f"{sent} USING x + 1", ddl(sent))
    with pytest.raises(FatalError, match=r"t was rewritten while x"):
        rig.run()


@gated
def test_what_a_message_says_of_another_table_tells_nothing_of_this_one(rig: Rig) -> None:
    install(rig.source_dsn)
    rig.both("CREATE SCHEMA shop", "CREATE TABLE shop.t (id integer PRIMARY KEY, x integer)")
    rig.run()
    rig.write("INSERT INTO shop.t VALUES (1, 1)")
    sent = "ALTER TABLE t ALTER x TYPE numeric; ALTER TABLE shop.t ALTER x TYPE bigint"
    rig.transaction("ALTER TABLE t ALTER x TYPE bigint USING x * 2", sent, ddl(sent))
    with pytest.raises(FatalError, match=r"public\.t was rewritten while x"):
        rig.run()


@gated
def test_a_statement_tells_of_all_tables_that_inherit_the_column(rig: Rig) -> None:
    install(rig.source_dsn)
    rig.both(
        "CREATE TABLE base (id integer, x integer)",
        *(f"CREATE SCHEMA {name}; CREATE TABLE {name}.part (PRIMARY KEY (id)) INHERITS (base)" for name in "ab"),
    )
    rig.run()
    rig.write("INSERT INTO a.part VALUES (1, 1)", "INSERT INTO b.part VALUES (1, 2)")
    rig.run()
    sent = "ALTER TABLE base ALTER x TYPE bigint USING x * 2"
    rig.transaction(sent, ddl(sent))
    rig.run()
    assert rig.comparison().equal


@pytest.mark.parametrize("what", variants(_RENAMED, seldom=("a composite type", "a new type", "a table")))
def test_what_is_sent_is_followed_under_the_names_of_its_moment(rig: Rig, what: str) -> None:
    for statement in _RENAMED[what]:
        rig.transaction(statement, ddl(statement))
    rig.write("INSERT INTO t (id) VALUES (3)")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@pytest.mark.long
def test_a_block_that_builds_its_statements_says_what_it_does(rig: Rig) -> None:
    block = (
        "DO $do$ DECLARE name text; BEGIN FOREACH name IN ARRAY ARRAY['t', 'other'] LOOP "
        "EXECUTE format('ALTER TABLE public.%I ALTER %I TYPE bigint USING x * 2', name, 'x'); END LOOP; END $do$"
    )
    rig.transaction(block, ddl(block), "INSERT INTO t (id, x) VALUES (3, 7)")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


def test_a_run_that_passes_over_what_was_sent_says_of_which_tables_it_passes_over_more(rig: Rig) -> None:
    sent = "CREATE INDEX ON other (x)"
    unsent = ("ALTER TABLE t DROP x", "ALTER TABLE t ADD x integer DEFAULT 7")
    rig.transaction(sent, ddl(sent), *unsent, "INSERT INTO t (id) VALUES (90)")
    with pytest.raises(FatalError, match=r"until=\S+\. Such a run takes all .* of public\.t as done, be it sent"):
        rig.having(ddl=DdlPolicy.REFUSE).run()


@gated
def test_what_a_skipping_run_still_lacks_is_done_before_the_same_run_again(rig: Rig) -> None:
    sent, unsent = "ALTER TABLE other ADD n integer", "ALTER TABLE t ADD n integer"
    rig.transaction(sent, ddl(sent), unsent, "INSERT INTO t (id, n) VALUES (90, 1)")
    with pytest.raises(FatalError, match="ddl=skip") as refused:
        rig.having(ddl=DdlPolicy.REFUSE).run()
    execute(rig.target_dsn, sent)
    again = "Use ddl=skip and the same until again"
    with pytest.raises(FatalError, match=rf"the column n of public\.t was added .* run again: .*{again}"):
        skip_as_the_hint_says(rig, refused.value)
    execute(rig.target_dsn, unsent)
    skip_as_the_hint_says(rig, refused.value)
    rig.having(ddl=DdlPolicy.REFUSE).run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


def test_a_table_is_renamed_from_the_name_that_messages_gave_it_since_its_last_row(rig: Rig) -> None:
    for one in ("ALTER TABLE t RENAME TO lent", "INSERT INTO lent (id) VALUES (3)", "ALTER TABLE lent RENAME TO t"):
        rig.transaction(one, *([rig.ddl(one)] if "ALTER" in one else []))
    rig.write("ALTER TABLE t RENAME TO t2", "INSERT INTO t2 (id) VALUES (4)")
    rig.run()
    assert rig.comparison().equal


def test_a_column_that_only_a_message_renamed_is_named_before_what_is_computed_of_it(rig: Rig) -> None:
    rig.both("CREATE TABLE w (id integer PRIMARY KEY, a integer, g integer GENERATED ALWAYS AS (a * 2) STORED)")
    rig.run()
    rig.write("INSERT INTO w VALUES (1, 1)")
    rig.run()
    rename = "ALTER TABLE w RENAME a TO b"
    rig.transaction(rename, rig.ddl(rename))
    rig.write("ALTER TABLE w RENAME b TO a", "INSERT INTO w VALUES (2, 2)")
    with pytest.raises(FatalError, match="a is called b") as refused:
        rig.run()
    execute(rig.target_dsn, *re.findall(r"ALTER TABLE .*? TO \"a\"", str(refused.value)))
    rig.run()
    assert rig.comparison().equal
