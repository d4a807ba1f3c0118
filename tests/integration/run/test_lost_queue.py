"""A queue that is lost in the middle of a run, whose first lane died with branches decided and not committed."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol
from airflow_parallel_apply.pipeline.errors import OwnershipLost
from airflow_parallel_apply.pipeline.target.postgres import target
from tests.support.rig import Rig, execute
from tests.support.variants import gated


def refuse_to_settle(*args: object) -> bool:
    raise ZeroDivisionError


def prepared(rig: Rig) -> int:
    ((count,),) = rig.rows("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()")
    return int(count)


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig.both("CREATE TABLE t (n integer)")
    return rig.having(consistency=Consistency.EPOCH, epoch_protocol=EpochProtocol.TWO_PHASE)


@pytest.fixture
def opened(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> run.OpenedRun:
    rig.prepare()
    rig.write("INSERT INTO t SELECT generate_series(1, 100)")
    rig.capture("run")
    opened = rig.open("run")
    with monkeypatch.context() as dying:
        dying.setattr(target, "settle", refuse_to_settle)
        with pytest.raises(ZeroDivisionError):
            rig.lane(opened, 0)
    execute(rig.target_dsn, "DELETE FROM parallel_apply.task")
    assert prepared(rig) > 0
    return opened


def test_lanes_go_on_with_the_consistency_that_the_run_was_opened_with(rig: Rig, opened: run.OpenedRun) -> None:
    """The DAG was edited meanwhile."""
    edited = rig.having(consistency=Consistency.CHANNEL)
    edited.close(opened, edited.apply(opened))
    edited.run("next")
    assert rig.rows("SELECT count(*) FROM t") == [(100,)]
    assert prepared(rig) == 0


@gated
def test_a_close_that_no_lane_was_before_leaves_nothing_prepared(rig: Rig, opened: run.OpenedRun) -> None:
    with pytest.raises(OwnershipLost, match="the queue was lost"):
        rig.close(opened)
    assert prepared(rig) == 0
    assert rig.rows("SELECT count(*) FROM t") == [(100,)]
