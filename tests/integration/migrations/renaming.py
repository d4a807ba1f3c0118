"""Three tables with rows that are followed, and what writes to whatever they are called by now."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.rig import Rig, execute


@pytest.fixture(name="rig")
def rig_of_three_tables(rig: Rig) -> Rig:
    made = rig.having(channels=4, epoch_max_changes=20, ddl=DdlPolicy.REFUSE)
    made.both(*(f"CREATE TABLE {name} (id integer PRIMARY KEY, v text DEFAULT '{name}')" for name in "abc"))
    made.prepare()
    write(made)
    return made


def write(rig: Rig, *, first: int = 0) -> None:
    names = rig.rows(
        "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relnamespace >= 2200 AND oid > 16384 "
        "AND relnamespace::regnamespace::text !~ '^(pg_|information_schema|parallel_apply)' ORDER BY oid",
        side="source",
    )
    for number, (name,) in enumerate(names):
        rig.write(
            f"INSERT INTO {name} (id) SELECT i FROM generate_series({first + 1}, {first + 30 + number}) i",
            f"UPDATE {name} SET v = v || '!' WHERE id % 3 = {number}",
            f"DELETE FROM {name} WHERE id % 11 = {number}",
        )


def follow_hints(rig: Rig) -> list[str]:
    """Run until it is green, and do at the target what each error's hint says. Returns the errors."""
    told: list[str] = []
    while len(told) < 8:
        try:
            rig.run()
        except FatalError as error:
            hint = str(error)
            told.append(hint)
            renames = re.search(r"\(((?:ALTER TABLE|CREATE SCHEMA) .*?)\), then run (again|once with ddl=apply)", hint)
            found = renames or re.search(r"(?:Run |: )(CREATE TABLE .*?\)\))", hint)
            assert found is not None, told
            execute(rig.target_dsn, *found.group(1).split("; "))
            if renames is not None and renames.group(2) != "again":
                rig.having(ddl=DdlPolicy.APPLY).run()
        else:
            return told
    raise AssertionError(told)


def assert_equal(rig: Rig) -> None:
    comparison = rig.comparison()
    assert comparison.equal, comparison


def forget(rig: Rig) -> None:
    """Remove what the target knows of its tables beside their names; earlier versions knew no more."""
    execute(rig.target_dsn, "DELETE FROM parallel_apply.applied_table")
