"""A queue that is lost in the middle of a run, whose lanes fill it anew."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol
from airflow_parallel_apply.pipeline.target.postgres import target
from tests.support.rig import Rig, execute


def refuse_to_settle(*args: object) -> bool:
    raise ZeroDivisionError


def test_a_run_goes_on_with_the_consistency_that_it_was_opened_with(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The DAG was edited meanwhile, and its first lane died with a group's branches decided and not committed."""
    rig = rig.having(consistency=Consistency.EPOCH, epoch_protocol=EpochProtocol.TWO_PHASE)
    rig.both("CREATE TABLE t (n integer)")
    rig.prepare()
    rig.write("INSERT INTO t SELECT generate_series(1, 100)")
    rig.capture("run")
    opened = rig.open("run")
    with monkeypatch.context() as dying:
        dying.setattr(target, "settle", refuse_to_settle)
        with pytest.raises(ZeroDivisionError):
            rig.lane(opened, 0)
    execute(rig.target_dsn, "DELETE FROM parallel_apply.task")
    edited = rig.having(consistency=Consistency.CHANNEL)
    edited.close(opened, edited.apply(opened))
    edited.run("next")
    assert rig.rows("SELECT count(*) FROM t") == [(100,)]
    assert rig.rows("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()") == [(0,)]
