"""A source's database that is renamed: the log is that of its former name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_parallel_apply.pipeline.errors import LogError
from tests.support.rig import Rig, execute

pytestmark = pytest.mark.usefixtures("new_sessions")


def test_a_database_that_was_renamed_is_to_have_its_former_name_again(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)")
    rig.prepare()
    name = conninfo_to_dict(rig.source_dsn)["dbname"]
    beside = make_conninfo(rig.source_dsn, dbname="postgres")
    execute(beside, f"ALTER DATABASE {name} RENAME TO {name}_new")
    try:
        with pytest.raises(LogError, match="its database is") as refused:
            replace(rig, source_dsn=make_conninfo(rig.source_dsn, dbname=f"{name}_new")).run()
    finally:
        execute(beside, f"ALTER DATABASE {name}_new RENAME TO {name}")
    assert f"give it the name {name} again" in str(refused.value.hint)
    rig.write("INSERT INTO t VALUES (1)")
    rig.run()
    assert rig.comparison().equal
