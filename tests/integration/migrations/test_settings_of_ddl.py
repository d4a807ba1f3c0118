"""DDL messages make of older rows what the session made of them that sent them."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from tests.support.rig import Rig

STATEMENTS = {
    "a time zone": ("SET timezone = 'Asia/Tokyo'", "ALTER TABLE public.t ALTER a TYPE timestamptz", "2024-01-01 00:00"),
    "a style of dates": ("SET datestyle = 'SQL, DMY'", "ALTER TABLE public.t ALTER a TYPE text", "2024-02-01 00:00"),
    "of its own": (
        "SET timezone = 'Asia/Tokyo'",
        "SET timezone = 'Asia/Tokyo'; SET datestyle = 'SQL, DMY'; ALTER TABLE public.t ALTER a TYPE timestamptz",
        "2024-01-01 00:00",
    ),
}


@pytest.mark.parametrize("case", STATEMENTS)
def test_what_a_statement_made_of_older_rows_under_the_session_s_settings_it_makes_at_the_target(
    rig: Rig, case: str
) -> None:
    setting, statement, value = STATEMENTS[case]
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, a timestamp)")
    rig.prepare()
    rig.write(f"INSERT INTO t VALUES (1, '{value}')")
    rig.run()
    rig.transaction(setting, statement, rig.ddl(statement), "INSERT INTO t VALUES (2, '2024-03-04 05:06')")
    rig.write("INSERT INTO t VALUES (3, '2024-03-04 05:06')")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison
