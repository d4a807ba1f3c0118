"""Columns that a table has from another one, by inheritance: whatever comes first, the hint leads to green."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.ddl_messages import install
from tests.support.rig import Rig, execute

_TABLES = (
    "CREATE TABLE parent (id integer PRIMARY KEY, a text, b integer)",
    "CREATE TABLE child (c integer, PRIMARY KEY (id)) INHERITS (parent)",
)
CHANGES = {
    "dropped": "ALTER TABLE parent DROP b",
    "renamed": "ALTER TABLE parent RENAME a TO x",
    "added": "ALTER TABLE parent ADD d integer",
    "retyped": "ALTER TABLE parent ALTER b TYPE bigint",
}
FIRST = {
    "child": ["INSERT INTO child (id, c) VALUES (3, 3)", "INSERT INTO parent (id) VALUES (4)"],
    "parent": ["INSERT INTO parent (id) VALUES (4)", "INSERT INTO child (id, c) VALUES (3, 3)"],
}


_OFTEN = {("dropped", "child", "refuse"), ("added", "child", "refuse"), ("renamed", "child", "apply")}


@pytest.mark.parametrize(
    ("change", "first", "ddl"),
    [
        pytest.param(change, first, ddl, marks=() if (change, first, ddl) in _OFTEN else pytest.mark.long)
        for change in CHANGES
        for first in FIRST
        for ddl in (DdlPolicy.REFUSE, DdlPolicy.APPLY)
    ],
)
def test_a_change_of_a_parent_is_followed_or_its_statement_is_named(
    rig: Rig, change: str, first: str, ddl: DdlPolicy
) -> None:
    rig.both(*_TABLES)
    install(rig.source_dsn)
    rig = rig.having(ddl=ddl)
    rig.prepare()
    rig.write("INSERT INTO parent VALUES (1, 'x', 1)", "INSERT INTO child VALUES (2, 'y', 2, 2)")
    rig.run()
    rig.write(CHANGES[change], *FIRST[first])
    for _ in range(2):
        told = stopped(rig)
        if told is None:
            break
        # Under APPLY only what the parent's own definition would bring, were it there first.
        assert ddl is DdlPolicy.REFUSE or (first == "child" and "has the column from public.parent" in told)
        found = re.search(r"\((ALTER TABLE .*)\), then run again", told)
        assert found is not None, told
        execute(rig.target_dsn, *found[1].split("; "))
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


def stopped(rig: Rig) -> str | None:
    """Run it, and return what the red run says."""
    try:
        rig.run()
    except FatalError as error:
        return str(error)
    return None
