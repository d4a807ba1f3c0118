"""With ddl=apply the target's role changes tables, which only an owner may: told beforehand, with the command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.plain_rig import PlainRig, plain_rig
from tests.support.rig import execute


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Iterator[PlainRig]:
    with plain_rig(source_dsn, target_dsn, tmp_path) as made:
        yield made


@pytest.mark.parametrize("is_sent", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_command_of_the_check_lets_a_run_go_on_that_may_not_alter_a_table(rig: PlainRig, is_sent: bool) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)", "CREATE TABLE other (id integer PRIMARY KEY)")
    rig.prepare()
    ddl = "ALTER TABLE public.t ADD COLUMN c integer DEFAULT 5"
    rig.transaction("INSERT INTO t VALUES (1)", ddl, *([rig.ddl(ddl)] if is_sent else []))
    rig.write("INSERT INTO t VALUES (2, 3)")
    applying = rig.having(ddl=DdlPolicy.APPLY)
    with pytest.raises(FatalError, match=r"must be owner of table t.*Hint: .*parallel-apply check --ddl apply"):
        applying.run()
    checked = check_pipeline(applying.config, rig.source, rig.target)
    assert checked.is_good
    commands = [command for found in checked.findings for command in found.fix if "does not own" in found.what]
    assert [command.split(" OWNER")[0] for command in commands] == [
        'ALTER TABLE "public"."other"',
        'ALTER TABLE "public"."t"',
    ]
    execute(psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres"), *commands)
    applying.run()
    assert rig.comparison().equal
    assert rig.rows("SELECT id, c FROM t ORDER BY id") == [(1, 5), (2, 3)]
