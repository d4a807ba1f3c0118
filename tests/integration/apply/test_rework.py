"""Work in vain is told by the lanes' reports and by `status`, with its reason and table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from airflow_parallel_apply.cli.status_view import status_view
from airflow_parallel_apply.pipeline.admin.status import read_status
from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol
from airflow_parallel_apply.pipeline.model.epoch import StagedUnit, Unit
from airflow_parallel_apply.router.plan import plan
from tests.support.eight_channels import UNIQUE, make_rig, require_equal
from tests.support.local_stage import LocalStage
from tests.support.plain_rig import plain_rig
from tests.support.rig import Rig, execute
from tests.support.variants import gated

Told = dict[tuple[str, str, str | None], int]


class ForgetfulStage(LocalStage):
    """Loses the first that it stages, as a target does that crashes."""

    is_lost = False
    dsn = ""

    def stage(self, unit: Unit) -> StagedUnit:
        staged = super().stage(unit)
        if staged.tables and not ForgetfulStage.is_lost:
            ForgetfulStage.is_lost = True
            execute(self.dsn, *(f"DROP TABLE parallel_apply.{table.staging}" for table in staged.tables))
        return staged


def applied(rig: Rig) -> Told:
    """Apply, and return what the lanes told of work in vain."""
    rig.capture("watched")
    plan(rig.config, rig.target)
    opened = rig.open("watched")
    reports = rig.apply(opened)
    rig.close(opened, reports)
    told: Told = {}
    for report in reports:
        for found in report["rework"]:
            key = found["kind"], found["reason"], found["table"]
            told[key] = told.get(key, 0) + found["count"]
    return told


def in_status(rig: Rig) -> Told:
    """Return what `status` tells of work in vain."""
    status = read_status(rig.target, "p")
    return {(found.kind, found.reason, found.table): found.count for found in status.rework}


def shown(rig: Rig) -> str:
    text = StringIO()
    Console(file=text, width=250).print(status_view(read_status(rig.target, "p"), {}))
    return text.getvalue()


@pytest.fixture
def eight(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    return make_rig(source_dsn, target_dsn, tmp_path, lanes=2)


@contextmanager
def forgetting(rig: Rig) -> Iterator[Rig]:
    ForgetfulStage.is_lost, ForgetfulStage.dsn = False, rig.target_dsn
    yield replace(rig, stage=lambda opened: ForgetfulStage(rig.config.log_url, rig.target))
    assert ForgetfulStage.is_lost


@gated
def test_a_merge_point_and_the_rollback_before_it_name_their_table(eight: Rig) -> None:
    eight.both(UNIQUE)
    eight.prepare()
    eight.write("INSERT INTO t SELECT i, i FROM generate_series(1, 30) i")
    eight.run()
    eight.transaction("UPDATE t SET u = u + 1000", "UPDATE t SET u = (id + 1) % 30")
    told = applied(eight)
    require_equal(eight)
    assert told[("merge point", "unique", "public.t")] >= 1
    assert told[("rollback", "unique", "public.t")] >= 1
    assert in_status(eight) == told
    assert f"rollback: {told[('rollback', 'unique', 'public.t')]} unique on public.t, last up to seqno" in shown(eight)


@gated
@pytest.mark.parametrize("consistency", list(Consistency))
def test_staging_that_was_lost_is_told(eight: Rig, consistency: Consistency) -> None:
    rig = eight.having(consistency=consistency, epoch_protocol=EpochProtocol.LEADER_MERGE)
    rig.both(UNIQUE)
    rig.prepare()
    rig.transaction("INSERT INTO t SELECT i, i FROM generate_series(1, 30) i", "UPDATE t SET u = u + 100")
    with forgetting(rig) as forgetful:
        told = applied(forgetful)
    require_equal(rig)
    again = {("restaging", "staging lost", None): 1} if consistency is Consistency.EPOCH else {}
    assert told == {("rollback", "staging lost", None): 1, **again}
    assert in_status(rig) == told


@gated
@pytest.mark.parametrize("consistency", list(Consistency))
def test_replays_name_their_reason(source_dsn: str, target_dsn: str, tmp_path: Path, consistency: Consistency) -> None:
    with plain_rig(source_dsn, target_dsn, tmp_path) as made:
        rig = made.having(consistency=consistency, epoch_protocol=EpochProtocol.LEADER_MERGE)
        made.both(
            "CREATE TABLE parent (id int PRIMARY KEY)",
            "CREATE TABLE child (parent int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE, n int, v text, "
            "PRIMARY KEY (parent, n))",
            "CREATE TABLE grandchild (id int PRIMARY KEY, parent int, n int, "
            "FOREIGN KEY (parent, n) REFERENCES child ON DELETE CASCADE ON UPDATE CASCADE)",
        )
        rig.prepare()
        rig.transaction(
            "INSERT INTO parent SELECT generate_series(1, 9)",
            "INSERT INTO child SELECT p, n, 'a' FROM generate_series(1, 9) p, generate_series(1, 3) n",
            "INSERT INTO grandchild SELECT p * 10 + n, p, n FROM generate_series(1, 9) p, generate_series(1, 3) n",
        )
        rig.run()
        # As sets these contradict each other: what is moved to 99 is deleted with 3 before it can be.
        rig.transaction("UPDATE parent SET id = 99 WHERE id = 3", "UPDATE child SET v = 'b' WHERE parent = 99")
        rig.transaction("DELETE FROM parent WHERE id = 4", "UPDATE parent SET id = 4 WHERE id = 5")
        rig.transaction("DELETE FROM parent WHERE id = 99", "INSERT INTO parent VALUES (3)")
        rig.transaction("UPDATE child SET n = 7 WHERE parent = 6 AND n = 1", "DELETE FROM child WHERE parent = 7")
        told = applied(rig)
        assert rig.comparison().equal
        assert {kind for kind, _, _ in told} >= {"rollback", "replay"}
        kinds: dict[str, Any] = {}
        for (kind, reason, table), _ in told.items():
            kinds.setdefault(kind, set()).add((reason, table))
        assert kinds["replay"] <= kinds["rollback"], "what was replayed had been refused for that reason"
        assert {key: count for key, count in in_status(rig).items() if key[0] != "merge point"} == told
