"""Insertions alone are committed where they are loaded; what a table does not take so is staged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_parallel_apply.pipeline.admin.status import read_status
from airflow_parallel_apply.pipeline.model.epoch import StagedUnit, Unit
from airflow_parallel_apply.router.plan import plan
from tests.support.eight_channels import make_rig, require_equal
from tests.support.local_stage import LocalStage
from tests.support.rig import Rig, execute
from tests.support.variants import gated

TABLES = ("CREATE TABLE t (id integer PRIMARY KEY, u integer)", "CREATE TABLE entry (at integer, note text)")
INSERTIONS = (
    "INSERT INTO t SELECT i, i FROM generate_series(1, 300) i",
    "INSERT INTO entry SELECT i % 3, 'same' FROM generate_series(1, 100) i",
)


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    made = make_rig(source_dsn, target_dsn, tmp_path, lanes=2)
    made.both(*TABLES)
    made.prepare()
    return made


def applied(rig: Rig) -> Sequence[dict[str, Any]]:
    rig.capture("run")
    plan(rig.config, rig.target)
    opened = rig.open("run")
    reports: Sequence[dict[str, Any]] = rig.apply(opened)
    rig.close(opened, reports)
    require_equal(rig)
    return reports


def total(reports: Sequence[dict[str, Any]], name: str) -> int:
    return sum(report[name] for report in reports)


def test_insertions_alone_are_committed_where_they_are_loaded(rig: Rig) -> None:
    rig.write(*INSERTIONS)
    reports = applied(rig)
    assert total(reports, "direct_units") == total(reports, "units") > 0
    assert total(reports, "rows") == 400


@gated
def test_a_unit_with_other_changes_is_staged_and_those_behind_it_are_not(rig: Rig) -> None:
    rig.transaction(*INSERTIONS, "UPDATE t SET u = u + 1000")
    rig.write("INSERT INTO t SELECT i, i FROM generate_series(301, 400) i")
    reports = applied(rig.having(epoch_max_changes=700, unit_max_bytes=100))
    assert 0 < total(reports, "direct_units") < total(reports, "units")


class ObstructedStage(LocalStage):
    """Another channel's row is in the way of what goes straight in, and gone when it is staged."""

    dsn = ""

    def stage(self, unit: Unit) -> StagedUnit:
        if not unit.is_direct:
            return super().stage(unit)
        execute(self.dsn, "INSERT INTO t SELECT 10000 + i, i FROM generate_series(1, 300) i ON CONFLICT DO NOTHING")
        try:
            return super().stage(unit)
        finally:
            execute(self.dsn, "DELETE FROM t WHERE id > 10000")


@gated
def test_insertions_that_meet_another_row_are_staged_and_those_behind_them_too(rig: Rig) -> None:
    rig.both("ALTER TABLE t ADD UNIQUE (u)")
    rig.write(
        *(f"INSERT INTO t SELECT i, i FROM generate_series({first}, {first + 9}) i" for first in range(1, 301, 10))
    )
    ObstructedStage.dsn = rig.target_dsn
    rig = rig.having(channels=1, lanes=1, epoch_max_changes=10, unit_max_bytes=1)
    reports = applied(replace(rig, stage=lambda opened: ObstructedStage(rig.config.log_url, rig.target)))
    assert (total(reports, "units"), total(reports, "direct_units")) == (30, 0)
    told = {(found.kind, found.reason, found.table): found.count for found in read_status(rig.target, "p").rework}
    assert told == {("restaging", "insertions refused", "public.t"): 2}, "at the first and behind 16 others"


@gated
def test_tables_that_take_no_rows_straight_are_staged_for(rig: Rig) -> None:
    """Beside one that does, in the same units."""
    rig.both("CREATE TABLE loud (id integer PRIMARY KEY, v text)")
    rig.prepare()
    execute(
        rig.target_dsn,
        "CREATE FUNCTION quiet() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        "CREATE TRIGGER quiet BEFORE INSERT ON loud FOR EACH ROW EXECUTE FUNCTION quiet()",
        "ALTER TABLE loud ENABLE ALWAYS TRIGGER quiet",
    )
    rig.transaction(*INSERTIONS, "INSERT INTO loud SELECT i, 'v' FROM generate_series(1, 200) i")
    reports = applied(rig)
    assert total(reports, "direct_units") == 0
