"""Tables that were made OF a type: the server alters none of their columns before they are freed from it."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.ddl_messages import install
from tests.support.rig import Rig, execute
from tests.support.variants import GATED

CHANGES = {
    "add": "ALTER TYPE pair ADD ATTRIBUTE z integer CASCADE",
    "drop": "ALTER TYPE pair DROP ATTRIBUTE b CASCADE",
    "rename": "ALTER TYPE pair RENAME ATTRIBUTE b TO z CASCADE",
    "exchange": "ALTER TYPE pair RENAME ATTRIBUTE b TO x CASCADE; ALTER TYPE pair RENAME ATTRIBUTE c TO b CASCADE",
    "free": "ALTER TABLE m NOT OF; ALTER TABLE m ADD COLUMN z integer",
}


@pytest.mark.parametrize(
    ("change", "ddl"),
    [
        pytest.param("add", DdlPolicy.REFUSE, marks=GATED),
        *(
            pytest.param(change, ddl, marks=pytest.mark.long)
            for change in CHANGES
            for ddl in (DdlPolicy.REFUSE, DdlPolicy.APPLY)
            if (change, ddl) != ("add", DdlPolicy.REFUSE)
        ),
    ],
)
def test_a_table_of_a_type_is_freed_from_it_before_its_columns_change(rig: Rig, change: str, ddl: DdlPolicy) -> None:
    rig = rig.having(ddl=ddl)
    rig.both("CREATE TYPE pair AS (id integer, b integer, c integer)", "CREATE TABLE m OF pair (PRIMARY KEY (id))")
    rig.prepare()
    rig.write("INSERT INTO m VALUES (1, 2, 3)")
    rig.run()
    rig.write(f"BEGIN; {CHANGES[change]}; COMMIT", "INSERT INTO m VALUES (2)")
    if ddl is DdlPolicy.REFUSE:
        with pytest.raises(FatalError) as refused:
            rig.run()
        found = re.search(r"\((ALTER TABLE .*?)\), then run again", str(refused.value))
        assert found is not None, refused.value
        execute(rig.target_dsn, *found.group(1).split("; "))
    rig.run()
    assert rig.comparison().equal, rig.comparison()


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TYPE pair DROP ATTRIBUTE c CASCADE, ADD ATTRIBUTE c integer CASCADE, "
        "ALTER ATTRIBUTE b TYPE bigint CASCADE",
        *(pytest.param(change, marks=pytest.mark.long) for change in CHANGES.values()),
    ],
)
def test_the_event_trigger_tells_what_a_change_of_the_type_does_to_the_table(rig: Rig, change: str) -> None:
    install(rig.source_dsn)
    rig.both("CREATE TYPE pair AS (id integer, b integer, c integer)", "CREATE TABLE m OF pair (PRIMARY KEY (id))")
    rig.prepare()
    rig.write("INSERT INTO m VALUES (1, 2, 3)")
    rig.run()
    rig.write(f"BEGIN; {change}; COMMIT", "INSERT INTO m VALUES (2)")
    rig.run()
    assert rig.comparison().equal, rig.comparison()
