"""A type that a table uses for the first time, altered before a run has seen it there: older rows print otherwise."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.ddl_messages import ddl, install
from tests.support.rig import Rig, execute
from tests.support.variants import gated

_PAIR = "CREATE TYPE pair AS (n integer, t text)"
_MOOD = "CREATE TYPE mood AS ENUM ('x', 'y')"
_SWAP = ("ALTER TYPE mood RENAME VALUE 'x' TO 'z'", "ALTER TYPE mood RENAME VALUE 'y' TO 'x'")
_AGAIN = ("ALTER TYPE pair DROP ATTRIBUTE t", "ALTER TYPE pair ADD ATTRIBUTE t text")


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)", "CREATE TABLE v (id integer PRIMARY KEY)")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1)", "INSERT INTO v VALUES (1)")
    rig.run()
    return rig


def assert_equal(rig: Rig) -> None:
    comparison = rig.comparison()
    assert comparison.equal, comparison


_ENUM_CASE = ("mood", _MOOD, _SWAP, ("x", "x"))
_PAIR_CASE = ("pair", _PAIR, _AGAIN, ("(1,x)", "(2,y)"))


@gated
@pytest.mark.parametrize(
    ("kind", "make", "alter", "values", "is_one"),
    [
        (*_ENUM_CASE, False),
        (*_PAIR_CASE, True),
        pytest.param(*_ENUM_CASE, True, marks=pytest.mark.long),
        pytest.param(*_PAIR_CASE, False, marks=pytest.mark.long),
    ],
    ids=["enum", "composite in one transaction", "enum in one transaction", "composite"],
)
def test_it_stops_the_run_until_the_target_has_it_too(
    rig: Rig, kind: str, make: str, alter: tuple[str, ...], values: tuple[str, str], is_one: bool
) -> None:
    add = f"ALTER TABLE t ADD COLUMN p {kind}"
    execute(rig.target_dsn, make, add)
    statements = (make, add, f"UPDATE t SET p = '{values[0]}'", *alter, f"INSERT INTO t VALUES (2, '{values[1]}')")
    (rig.transaction if is_one else rig.write)(*statements)
    rig.write("INSERT INTO v VALUES (2)")
    told = rf"types that public\.t has not used before were altered(?s:.*)sent: {kind}(?s:.*)same ALTER TYPE"
    with pytest.raises(FatalError, match=told) as refused:
        rig.run()
    assert "public.v" not in str(refused.value)
    execute(rig.target_dsn, *alter)
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)
    rig.write(f"INSERT INTO t VALUES (3, '{values[1]}')")
    rig.run()
    assert_equal(rig)


@gated
def test_an_alteration_that_is_rolled_back_does_not_hide_one_before_it(rig: Rig) -> None:
    """The server writes a command's number into the entries that it would replace, whatever becomes of it."""
    rig.transaction(_MOOD, "ALTER TABLE t ADD COLUMN p mood", "UPDATE t SET p = 'x'", *_SWAP)
    rig.write(*(f"BEGIN; ALTER TYPE mood RENAME VALUE '{label}' TO 'q'; ROLLBACK" for label in ("z", "x")))
    with pytest.raises(FatalError, match=r"types that public\.t has not used before were altered"):
        rig.run()


def test_what_was_altered_before_a_run_or_named_otherwise_changes_nothing(rig: Rig) -> None:
    rig.both(_MOOD, _PAIR, *_SWAP, *_AGAIN, "CREATE DOMAIN pairs AS pair[]")
    rig.write("INSERT INTO v VALUES (2)", "INSERT INTO t VALUES (2)")
    rig.run()
    rig.both(
        "CREATE TYPE young AS ENUM ('x', 'y')",
        "CREATE TYPE couple AS (m young, n integer)",
        "ALTER TYPE couple RENAME TO both_of",
        "ALTER TYPE young OWNER TO CURRENT_USER",
        "GRANT USAGE ON TYPE young TO PUBLIC",
        "ALTER TABLE t ADD COLUMN m mood, ADD COLUMN ps pairs, ADD COLUMN b both_of",
    )
    rig.write("UPDATE t SET m = 'x', ps = ARRAY[ROW(1, 'x')::pair], b = ROW('x', 1)")
    rig.run()
    assert_equal(rig)


@gated
def test_what_was_altered_before_a_run_that_brought_nothing_changes_nothing(rig: Rig) -> None:
    """An idle pipeline on a busy server."""
    busy = ["SELECT pg_current_xact_id()"] * 50
    rig.both(_MOOD, *_SWAP)
    for _ in range(2):
        rig.write(*busy)
        rig.run()
    rig.both(_PAIR, *_AGAIN)
    rig.write(*busy)
    rig.run()
    rig.both("ALTER TABLE t ADD COLUMN m mood, ADD COLUMN p pair")
    rig.write("UPDATE t SET m = 'x', p = ROW(1, 'x')", *busy)
    rig.run()
    assert_equal(rig)


@pytest.mark.long
def test_it_is_followed_where_it_is_sent(rig: Rig) -> None:
    install(rig.source_dsn)
    add = "ALTER TABLE t ADD COLUMN p mood"
    for one in (_MOOD, add):
        rig.transaction(one, ddl(one))
    rig.write("UPDATE t SET p = 'x'")
    for one in _SWAP:
        rig.transaction(one, ddl(one))
    rig.write("INSERT INTO t VALUES (2, 'x')")
    rig.run()
    assert_equal(rig)
