"""A run dies between publishing a new table and seeing it published; rows come, and what they lie in or are made of is
altered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_parallel_apply.pipeline.capture import preparing
from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.rig import Rig, execute
from tests.support.variants import gated, variants

_FIRST_ROW = "INSERT INTO n VALUES (1, 'sad', 5)"
_ALTERED = {
    "a label": (_FIRST_ROW, "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"),
    "a column": (_FIRST_ROW, "ALTER TABLE n ALTER x TYPE integer USING x * 2"),
    "truncated": ("INSERT INTO p VALUES (1)", "TRUNCATE p_1"),
    "detached": (
        "INSERT INTO p VALUES (1)", "ALTER TABLE p DETACH PARTITION p_1", "DELETE FROM p_1",
        "ALTER TABLE p ATTACH PARTITION p_1 FOR VALUES FROM (0) TO (10)",
    ),
    "attached": (
        "CREATE SCHEMA far", "CREATE TABLE far.p_2 (id integer PRIMARY KEY)", "INSERT INTO far.p_2 VALUES (12)",
        "ALTER TABLE p ATTACH PARTITION far.p_2 FOR VALUES FROM (10) TO (20)",
    ),
}  # fmt: skip
_TOLD = {
    "a label": r"labels of an enum in public\.n were renamed",
    "a column": r"public\.n was rewritten while x changed",
    "truncated": r"public\.p_1 was truncated",
    "detached": r"public\.p_1 was detached and attached again",
    "attached": r"far\.p_2 was attached with rows",
}


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig = rig.having(tables=TablePatterns(include=("public.*",)))
    rig.both("CREATE TABLE v (id integer PRIMARY KEY)")
    rig.run()
    rig.both("CREATE TYPE mood AS ENUM ('sad', 'ok')", "CREATE TABLE n (id integer PRIMARY KEY, m mood)")
    rig.both("ALTER TABLE n ADD x integer")
    execute(rig.target_dsn, "CREATE TABLE p (id integer PRIMARY KEY)")
    rig.write(
        "CREATE TABLE p (id integer PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
    )
    return rig


def between(monkeypatch: pytest.MonkeyPatch, rig: Rig, act: Callable[[], None]) -> None:
    """A run that acts once it has published the tables."""
    settle, calls = preparing._settle, []

    def acting(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            act()
        settle(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "_settle", acting)
        rig.run()


def die_between(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        between(monkeypatch, rig, die)
    assert ("n",) in rig.rows("SELECT tablename FROM pg_publication_tables", side="source")


def equal_after_run(rig: Rig) -> None:
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@pytest.mark.parametrize("what", variants(_ALTERED, seldom=("a label", "detached", "truncated")))
def test_what_was_altered_since_stops_the_run(rig: Rig, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    die_between(monkeypatch, rig)
    rig.write(*_ALTERED[what])
    table = "n" if _FIRST_ROW in _ALTERED[what] else "p"
    with pytest.raises(FatalError, match=rf"{_TOLD[what]}(?s:.*)recopy .*--table public\.{table}"):
        rig.run()
    if what == "a label":
        execute(rig.target_dsn, _ALTERED[what][-1])
    recopy_tables(rig.config, rig.source, rig.target, [("public", table)], report=lambda progress: None)
    equal_after_run(rig)


@gated
@pytest.mark.parametrize(
    "more", variants(["UPDATE n SET x = 6", "ALTER TABLE n ADD y integer"], seldom=["UPDATE n SET x = 6"])
)
def test_rows_and_columns_are_followed(rig: Rig, monkeypatch: pytest.MonkeyPatch, more: str) -> None:
    die_between(monkeypatch, rig)
    rig.write(_FIRST_ROW, more, "INSERT INTO n VALUES (2)")
    equal_after_run(rig)


@gated
def test_the_first_row_may_come_as_soon_as_the_lock_is_gone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    between(monkeypatch, rig, lambda: rig.write(_FIRST_ROW))
    equal_after_run(rig)


@pytest.mark.long
def test_a_run_that_dies_before_it_has_published_them_leaves_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = preparing._keep

    def kept_then_dying(*arguments: Any) -> None:
        keep(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "_keep", kept_then_dying)
        patch.setattr(preparing, "_settle", lambda preparing_, url: keep(url, preparing_.settle))
        with pytest.raises(KeyboardInterrupt):
            rig.run()
    assert rig.rows("SELECT tablename FROM pg_publication_tables", side="source") == [("v",)]
    rig.write(_FIRST_ROW, "ALTER TABLE n ALTER x TYPE integer USING x * 2", "DELETE FROM n")
    equal_after_run(rig)
    rig.write("INSERT INTO n VALUES (2)")
    equal_after_run(rig)
