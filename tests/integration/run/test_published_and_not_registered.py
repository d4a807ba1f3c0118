"""A run dies between publishing a new table and registering it; rows come, and what they are made of is altered."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_parallel_apply.pipeline.capture import preparing
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.rig import Rig, execute

_ALTERED = {
    "a label": ("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", "mood"),
    "a column": ("ALTER TABLE n ALTER x TYPE integer USING x * 2", "x"),
}


@pytest.fixture
def rig(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    rig.both("CREATE TABLE v (id integer PRIMARY KEY)")
    rig.run()
    rig.both("CREATE TYPE mood AS ENUM ('sad', 'ok')", "CREATE TABLE n (id integer PRIMARY KEY, m mood, x integer)")
    settle, calls = preparing._settle, []

    def dying(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        settle(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "_settle", dying)
        with pytest.raises(KeyboardInterrupt):
            rig.run()
    assert ("n",) in rig.rows("SELECT tablename FROM pg_publication_tables", side="source")
    return rig


@pytest.mark.parametrize("what", _ALTERED)
def test_what_was_altered_under_its_first_rows_stops_the_run(rig: Rig, what: str) -> None:
    statement, name = _ALTERED[what]
    rig.write("INSERT INTO n VALUES (1, 'sad', 5)", statement)
    with pytest.raises(FatalError, match=rf"public\.n had rows before .*: {name}(?s:.*)recopy .*--table public\.n"):
        rig.run()
    if what == "a label":
        execute(rig.target_dsn, statement)
    recopy_tables(rig.config, rig.source, rig.target, [("public", "n")], report=lambda progress: None)
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


def test_rows_alone_are_followed(rig: Rig) -> None:
    rig.write("INSERT INTO n VALUES (1, 'sad', 5)", "UPDATE n SET x = 6")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison
