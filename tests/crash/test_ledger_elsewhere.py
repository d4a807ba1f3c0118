"""A pipeline whose ledger is in a third database: the same runs, and kills between the two databases' commits."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from psycopg.conninfo import make_conninfo

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.admin.drop import drop_pipeline
from airflow_parallel_apply.pipeline.admin.purge import purge_log
from airflow_parallel_apply.pipeline.admin.status import read_status
from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import ConfigurationError, TargetError
from airflow_parallel_apply.pipeline.model.finding import errors
from airflow_parallel_apply.pipeline.target.open import logs_applied_at
from airflow_parallel_apply.router.plan import plan
from tests.crash.scene import Scene
from tests.support.pooler import transaction_pooler
from tests.support.rig import execute
from tests.support.step_process import Fault
from tests.support.variants import gated, variants

LEASE = "airflow_parallel_apply.pipeline.ledger.postgres.lease:Lease"
TARGET = "airflow_parallel_apply.pipeline.target.postgres.target:PostgresTarget"

KILLS = {
    "between owner and positions": Fault(at=f"{LEASE}.acquire", when="after"),
    "after both": Fault(at=f"{TARGET}.own", when="after"),
    "between positions and routing": Fault(at=f"{TARGET}.lay_out", when="after"),
}
"""The places where `open` dies."""


@pytest.fixture
def written(scene: Scene, ledger_dsn: str) -> Scene:
    """A first run is over; values change hands between channels since, around a TRUNCATE."""
    scene.rig = replace(scene.rig, ledger_dsn=ledger_dsn)
    scene.rig.both("CREATE TABLE t (id integer PRIMARY KEY, u integer UNIQUE, v text)", "CREATE TABLE other (id int)")
    scene.rig.prepare()
    scene.rig.write("INSERT INTO t SELECT i, i, 'a' FROM generate_series(1, 60) i")
    scene.rig.run("first")
    for step in range(1, 4):
        scene.rig.transaction("UPDATE t SET u = u + 600", f"UPDATE t SET u = (id + {step}) % 60, v = v || {step}")
    scene.rig.write("INSERT INTO other SELECT generate_series(1, 9)", "TRUNCATE other", "UPDATE t SET v = 'end'")
    return scene


def at_ledger(scene: Scene) -> str:
    assert scene.rig.ledger_dsn is not None
    return scene.rig.ledger_dsn


def test_runs_leave_who_owns_them_and_their_plan_in_the_ledger_and_positions_with_the_rows(written: Scene) -> None:
    closed = written.rig.run("second")
    written.require_equal()
    count = "SELECT count(*) FROM parallel_apply."
    assert written.rig.rows(f"{count}epoch") == written.rig.rows(f"{count}run") == [(0,)]
    ledger = replace(written.rig, target_dsn=at_ledger(written))
    assert ledger.rows(f"{count}position") == [(0,)]
    assert ledger.rows(f"{count}epoch")[0][0] > 1
    assert ledger.rows("SELECT sum(count) > 0 FROM parallel_apply.rework WHERE kind = 'merge point'") == [(True,)]
    assert list(logs_applied_at(written.rig.target)) == ["p"]
    assert logs_applied_at(ledger.target) == {}
    found = read_status(written.rig.target, "p", written.rig.config.log_url)
    assert {channel.seqno for channel in found.channels} == {closed.stop_seqno}
    assert purge_log(written.rig.config.log_url, [written.rig.target]).needed_seqno == closed.stop_seqno


@gated
@pytest.mark.parametrize("opened_again", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_close_that_is_repeated_sees_that_its_target_was_set_back(written: Scene, *, opened_again: bool) -> None:
    rig = written.rig
    rig.capture("second")
    plan(rig.config, rig.target)
    opened = rig.open("second")
    closed = rig.close(opened, rig.apply(opened))
    if opened_again:
        opened = rig.open("second")
        assert opened.nothing_to_do
    execute(
        rig.target_dsn,
        "UPDATE parallel_apply.position SET seqno = 0",
        "TRUNCATE t",
        "INSERT INTO t SELECT i, i, 'a' FROM generate_series(1, 60) i",
    )
    with pytest.raises(TargetError, match="the target has lost commits"):
        rig.close(opened)
    opened = rig.open("second")
    assert rig.close(opened, rig.apply(opened)).stop_seqno == closed.stop_seqno
    written.require_equal()


@gated
@pytest.mark.parametrize("place", variants(KILLS, gated=["between owner and positions", "after both"]))
def test_an_open_that_dies_between_two_commits_is_opened_anew(written: Scene, place: str) -> None:
    written.rig.capture("second")
    if "routing" in place:
        written.rig = written.rig.having(channels=5)
    dying = written.start_open("second", fault=KILLS[place])
    assert dying.wait() == -signal.SIGKILL, dying.tail()
    written.rerun("second")
    written.require_equal()
    assert len(written.positions()) == written.rig.config.channels


@gated
def test_a_routing_that_died_halfway_may_be_taken_back(written: Scene) -> None:
    written.rig.capture("second")
    former = written.rig
    written.rig = former.having(channels=5)
    dying = written.start_open("second", fault=KILLS["between positions and routing"])
    assert dying.wait() == -signal.SIGKILL, dying.tail()
    assert len(written.positions()) == 5
    written.rig = former
    written.rerun("second")
    written.require_equal()
    assert len(written.positions()) == former.config.channels


@gated
def test_lanes_of_a_former_owner_commit_nothing_once_the_positions_are_owned(written: Scene) -> None:
    written.rig.capture("second")
    opened = written.open("second")
    lane = written.start_lane(opened, fault=Fault(at=f"{TARGET}.commit", when="before", signal=signal.SIGSTOP))
    lane.wait_stopped()
    written.rerun("second")
    written.require_equal()
    before = written.positions()
    lane.signal(signal.SIGCONT)
    lane.wait()
    assert written.positions() == before
    written.require_equal()


@gated
def test_whoever_names_no_ledger_or_another_is_told_where_it_is(written: Scene) -> None:
    forgetful = replace(written.rig, ledger_dsn=None)
    with pytest.raises(ConfigurationError, match="not in the target's own") as caught:
        forgetful.run("second")
    assert "ledger_conn_id" in (caught.value.hint or "")
    with pytest.raises(ConfigurationError, match="not in the target's own"):
        read_status(forgetful.target, "p")
    mistaken = replace(written.rig, ledger_dsn=written.rig.source_dsn)
    with pytest.raises(ConfigurationError, match="the ledger of pipeline p is in database"):
        mistaken.run("second")


@gated
def test_a_pooler_that_shares_the_ledger_s_sessions_is_refused_by_check_runs_and_recopy(
    written: Scene, target_server: PostgresServer
) -> None:
    with transaction_pooler(target_server.port) as port:
        dsn = make_conninfo(at_ledger(written), host="127.0.0.1", port=port, sslmode="disable")
        through = replace(written.rig, ledger_dsn=dsn)
        found = errors(check_pipeline(through.config, through.source, through.target).findings)
        assert any(finding.where == "ledger" and "transaction mode" in finding.what for finding in found), found
        with pytest.raises(ConfigurationError, match="the ledger: a pooler in transaction mode"):
            through.prepare()
        with pytest.raises(ConfigurationError, match="the ledger: a pooler in transaction mode"):
            recopy_tables(through.config, through.source, through.target, [("public", "t")], report=lambda _: None)
    written.rig.run("second")
    written.require_equal()


@gated
def test_a_ledger_that_lost_the_pipeline_does_not_begin_anew(written: Scene) -> None:
    execute(at_ledger(written), "DROP SCHEMA parallel_apply CASCADE")
    with pytest.raises(ConfigurationError, match="has lost"):
        written.rig.run("second")


@gated
def test_two_targets_may_not_share_a_name_in_one_ledger(written: Scene) -> None:
    other = replace(written.rig, target_dsn=written.rig.source_dsn)
    with pytest.raises(ConfigurationError, match="has a pipeline p already"):
        other.open("second")


@gated
def test_a_pipeline_that_is_dropped_is_gone_from_both(written: Scene) -> None:
    written.rig.run("second")
    removal = drop_pipeline("p", written.rig.source, written.rig.target)
    told = " ".join(removal.done)
    assert "from the target" in told
    assert "from its ledger" in told
    for side in (written.rig, replace(written.rig, target_dsn=at_ledger(written))):
        assert side.rows("SELECT to_regnamespace('parallel_apply')::text") == [(None,)]


@gated
def test_a_ledger_that_is_restored_older_than_its_target_goes_on_from_the_positions(written: Scene) -> None:
    written.rig.run("second")
    execute(
        at_ledger(written),
        "DELETE FROM parallel_apply.epoch WHERE number > 0",
        "DELETE FROM parallel_apply.run WHERE run_id = 'second'",
        "UPDATE parallel_apply.pipeline SET generation = 1, clean_stop_seqno = NULL",
    )
    written.rig.write("UPDATE t SET v = 'later'")
    written.rig.run("third")
    written.require_equal()


@gated
def test_a_table_is_copied_anew_and_the_plan_of_before_is_forgotten(written: Scene) -> None:
    written.rig.capture("second")
    plan(written.rig.config, written.rig.target)
    (copied,) = recopy_tables(
        written.rig.config, written.rig.source, written.rig.target, [("public", "t")], report=lambda progress: None
    )
    assert copied.rows == 60
    written.rig.write("UPDATE t SET v = 'later'")
    written.rig.run("third")
    written.require_equal()


@gated
def test_check_looks_where_the_ledger_is(written: Scene) -> None:
    assert check_pipeline(written.rig.config, written.rig.source, written.rig.target).is_good
    forgetful = replace(written.rig, ledger_dsn=None)
    (found,) = errors(check_pipeline(forgetful.config, forgetful.source, forgetful.target).findings)
    assert "not in the target's own" in found.what
