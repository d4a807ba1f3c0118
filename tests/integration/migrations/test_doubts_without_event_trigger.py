"""Red although nothing is wrong, where no event trigger tells: the reason says what was seen, and its hint leads on."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.rig import Rig, execute

_TABLE = "CREATE TABLE t (id integer PRIMARY KEY, a integer, b integer)"
_STATEMENT = re.compile(r"ALTER TABLE .*?(?=;|\), then| at the target|\. |\.$)")
DOUBTS = {
    "a type that needs a rewrite, and a renaming": (
        ["ALTER TABLE t RENAME a TO x", "ALTER TABLE t ALTER x TYPE bigint", "INSERT INTO t (id, x) VALUES (90, 1)"],
        r"public\.t was rewritten while x changed",
    ),
    "a column, and a rewrite": (
        ["ALTER TABLE t ADD c integer DEFAULT 5", "VACUUM FULL t", "INSERT INTO t (id) VALUES (90)"],
        r"column c of public\.t was added as integer, and the log does not tell what older rows hold in it",
    ),
}


@pytest.mark.parametrize("name", DOUBTS)
def test_a_doubt_is_told_and_its_hint_leads_on(rig: Rig, name: str) -> None:
    statements, says = DOUBTS[name]
    rig.both(_TABLE)
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, i, i FROM generate_series(1, 9) i")
    rig.run()
    rig.write(*statements)
    with pytest.raises(FatalError, match=says) as caught:
        rig.run()
    follow(rig, str(caught.value))
    rig.run()
    assert rig.comparison().equal


def follow(rig: Rig, told: str) -> None:
    """The statements that are named, and the copy; and again what that one says."""
    for _ in range(3):
        execute(rig.target_dsn, *_STATEMENT.findall(told.partition("Hint:")[2]))
        try:
            recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)
            return
        except FatalError as error:
            told = str(error)
