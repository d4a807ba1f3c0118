"""A later run that failed leaves the channels at different transactions: no run ends green before they have met."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import Consistency, PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.source.open import source_connector
from airflow_parallel_apply.router.plan import plan
from tests.support.rig import Rig, execute
from tests.support.variants import gated, variants


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    """The run `early` is green; behind it one of two channels failed, and the other one went on."""
    config = PipelineConfig(
        pipeline="p", log_url=str(tmp_path / "log"), start=Start.EMPTY, channels=2, lanes=1, epoch_max_changes=1
    )
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    made.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    made.prepare()
    made.write("INSERT INTO t SELECT n, 'early' FROM generate_series(1, 20) n")
    made.run("early")
    execute(made.target_dsn, "ALTER TABLE t ADD CONSTRAINT narrow CHECK (v <> 'later' OR id <> 7)")
    made.transaction("UPDATE t SET v = 'later'")
    with pytest.raises(TargetError, match="narrow"):
        made.run("later")
    execute(made.target_dsn, "ALTER TABLE t DROP CONSTRAINT narrow")
    assert positions(made) == [0, 1]
    return made


def positions(rig: Rig) -> list[int]:
    return [seqno for (seqno,) in rig.rows("SELECT seqno FROM parallel_apply.position ORDER BY seqno")]


@pytest.mark.parametrize("consistency", variants(Consistency, gated=[Consistency.EPOCH]))
def test_a_cleared_run_brings_the_channels_together_beyond_its_bound(rig: Rig, consistency: Consistency) -> None:
    closed = rig.having(consistency=consistency).run("early")
    assert positions(rig) == [1, 1]
    assert (closed.stop_seqno, closed.stopped_early) == (1, False)
    assert rig.comparison().equal


@gated
def test_a_plan_that_knows_nothing_of_where_channels_are_is_made_anew(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger elsewhere lost its end, and planned again before a channel had committed by the former plan."""
    rig.write("UPDATE t SET v = 'last'")
    rig.capture("next")
    execute(rig.target_dsn, "DELETE FROM parallel_apply.epoch WHERE last_seqno > 0")
    with monkeypatch.context() as unknowing:
        unknowing.setattr(PipelineSession, "plan_cuts", lambda session, above_seqno: ())
        plan(rig.having(epoch_max_changes=1000).config, rig.target)
    assert rig.rows("SELECT first_seqno, last_seqno FROM parallel_apply.epoch WHERE last_seqno > 0") == [(1, 2)]
    rig.run("next")
    assert positions(rig) == [2, 2]
    assert rig.comparison().equal


@gated
def test_a_run_up_to_an_offset_that_all_have_passed_brings_them_together(rig: Rig) -> None:
    ((offset,),) = rig.rows("SELECT until_offset FROM parallel_apply.run WHERE run_id = 'early'")
    rig.run("bounded", until=source_connector(rig.source).show_offset(offset))
    assert positions(rig) == [1, 1]
    assert rig.comparison().equal


@gated
def test_a_close_refuses_a_stop_at_what_is_not_the_runs_end_and_was_not_asked_for(rig: Rig) -> None:
    rig.run("together")
    rig.write("UPDATE t SET v = 'last'")
    rig.capture("set back")
    opened = rig.open("set back")
    reports = rig.apply(opened)
    execute(rig.target_dsn, "UPDATE parallel_apply.run SET until_seqno = until_seqno + 1 WHERE run_id = 'set back'")
    with pytest.raises(TargetError, match=r"is not known as this run's end, and nobody asked for it"):
        rig.close(opened, reports)


@gated
def test_a_close_refuses_channels_that_were_set_apart_beyond_the_runs_bound(rig: Rig) -> None:
    rig.run("together")
    opened = rig.open("early")
    assert opened.nothing_to_do
    execute(rig.target_dsn, "UPDATE parallel_apply.position SET seqno = 0 WHERE channel = 1")
    with pytest.raises(TargetError, match=r"has lost commits.*not all of its channels are at the same transaction"):
        rig.close(opened)
    assert rig.rows("SELECT clean_stop_seqno FROM parallel_apply.pipeline") == [(None,)]
