"""Types of columns, of users' and of extensions, that the target lacks: `check` prints what makes them, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, Start
from airflow_parallel_apply.pipeline.model.finding import Severity
from tests.support.findings import checked_rig, fix, look
from tests.support.rig import Rig, execute
from tests.support.variants import gated


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    return checked_rig(source_dsn, target_dsn, tmp_path)


def test_types_that_missing_columns_need_are_made_before_them(rig: Rig) -> None:
    execute(
        rig.source_dsn,
        """CREATE TYPE "Role" AS ENUM ('READER', 'WRITER')""",
        """CREATE DOMAIN "mainRole" AS "Role" CHECK (VALUE <> 'READER')""",
        'ALTER TABLE t ADD COLUMN role "mainRole", ADD COLUMN roles "Role"[]',
    )
    for finding in look(rig).findings:
        fix(rig, finding)
    assert look(rig).findings == ()


def test_a_type_that_a_column_would_need_to_be_as_at_the_source_is_told_before_the_command(rig: Rig) -> None:
    execute(rig.source_dsn, """CREATE TYPE "Role" AS ENUM ('READER')""", 'ALTER TABLE t ADD COLUMN role "Role"')
    execute(rig.target_dsn, "ALTER TABLE t ADD COLUMN role varchar(3)")
    checked = look(rig)
    assert checked.is_good
    for finding in checked.findings:
        fix(rig, finding)
    assert look(rig).findings == ()


@gated
def test_an_extension_whose_types_the_tables_need_that_a_first_run_makes_is_named(rig: Rig) -> None:
    rig = rig.having(start=Start.COPY, create_tables=True)
    rig.write(
        "CREATE SCHEMA ext",
        "CREATE EXTENSION vector SCHEMA ext",
        "CREATE DOMAIN place AS ext.vector(2)",
        "CREATE TABLE v (id int PRIMARY KEY, places place[])",
        "INSERT INTO v VALUES (1, '{\"[1,2]\"}')",
    )
    (finding,) = [one for one in look(rig).findings if one.severity is Severity.ERROR]
    assert finding.where == "extension vector"
    fix(rig, finding)
    rig.run()
    assert rig.comparison().equal


@gated
@pytest.mark.parametrize("has_begun", [False, True])
def test_an_extension_whose_type_a_missing_column_has_is_named(rig: Rig, *, has_begun: bool) -> None:
    if has_begun:
        rig = rig.having(ddl=DdlPolicy.APPLY)
        rig.prepare()
    rig.write("CREATE EXTENSION vector", "ALTER TABLE t ADD place vector(2)")
    extension, *others = [one for one in look(rig).findings if one.where in ("extension vector", "public.t")]
    assert extension.severity is (Severity.WARNING if has_begun else Severity.ERROR)
    for finding in (extension, *others):
        fix(rig, finding)
    assert not [one for one in look(rig).findings if one.where == extension.where]
    if not has_begun:
        rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a', '[1,2]')")
    rig.run()
    assert rig.comparison().equal
