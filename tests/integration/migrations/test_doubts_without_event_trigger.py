"""Red although nothing is wrong, where no event trigger tells: the reason says what was seen, and its hint leads on."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.rig import Rig, execute

_TABLE = "CREATE TABLE t (id integer PRIMARY KEY, a integer, b integer)"
_STATEMENT = re.compile(r"ALTER TABLE .*?(?=;|\), then| at the target|\. |\.$)")
_OPTION = re.compile(r"--table (\w+)\.(\w+)")
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


@pytest.mark.parametrize("ddl", [DdlPolicy.APPLY, pytest.param(DdlPolicy.REFUSE, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("renaming", "names"),
    [
        ("ALTER TABLE t RENAME TO z", {"t": "z"}),
        pytest.param("ALTER TABLE t SET SCHEMA s", {"t": "s.t"}, marks=pytest.mark.long),
        ("ALTER TABLE t RENAME TO z; ALTER TABLE other RENAME TO t", {"t": "z", "other": "t"}),
        (
            "ALTER TABLE t RENAME TO z; ALTER TABLE other RENAME TO t; ALTER TABLE z RENAME TO other",
            {"t": "other", "other": "t"},
        ),
    ],
)
def test_a_doubt_of_a_table_that_was_renamed_leads_on(
    rig: Rig, renaming: str, names: dict[str, str], ddl: DdlPolicy
) -> None:
    rig = rig.having(ddl=ddl)
    rig.both(_TABLE, "CREATE TABLE other (id integer PRIMARY KEY, a integer, b integer)")
    rig.both("CREATE SCHEMA s")
    rig.prepare()
    rig.write(*(f"INSERT INTO {name} SELECT i, i, i FROM generate_series(1, 9) i" for name in ("t", "other")))
    rig.run()
    rig.write("ALTER TABLE t ALTER a TYPE bigint USING a * 2", renaming)
    rig.write(*(f"INSERT INTO {name} VALUES (90, 1, 1)" for name in names.values()))
    with pytest.raises(FatalError, match="was rewritten while a changed") as caught:
        rig.run()
    told = str(caught.value)
    for _ in range(6):
        follow(rig, told)
        try:
            rig.run()
        except FatalError as error:
            told = str(error)
        else:
            break
    comparison = rig.comparison()
    assert comparison.equal, comparison


def follow(rig: Rig, told: str) -> None:
    """The statements that are named, and the copy; and again what that one says."""
    tables: list[tuple[str, str]] = []
    for _ in range(5):
        hint = told.partition("Hint:")[2]
        execute(rig.target_dsn, *_STATEMENT.findall(hint))
        tables = _OPTION.findall(hint) or tables
        if not tables:
            return
        try:
            recopy_tables(rig.config, rig.source, rig.target, tables, report=lambda progress: None)
            return
        except FatalError as error:
            told = str(error)
