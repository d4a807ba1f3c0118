"""A lane killed or asleep at each place where it holds something, a takeover, and a server lost under a lane."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest

from airflow_parallel_apply.pipeline.errors import LeaseBusy
from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from tests.crash.history import write_units
from tests.crash.scene import Scene, spark_processes, wait_until
from tests.crash.struck_lane import (
    COORDINATOR,
    TARGET,
    WHILE_IT_STAGES,
    committed,
    finish_after_kill,
    finish_while_asleep,
    require_later_run,
    require_repeatable,
)
from tests.support.step_process import Fault
from tests.support.variants import gated, variants

PLACES = {
    "while it stages": WHILE_IT_STAGES,
    "between staging and commit": Fault(at=f"{TARGET}:PostgresTarget.commit", when="before", call=2),
    "inside the target's transaction": Fault(at=f"{TARGET}:move", when="before", call=2),
    "between commit and finish": Fault(at=f"{TARGET}:PostgresTarget.commit", when="after", call=2),
    "between finish and feed": Fault(at=f"{COORDINATOR}.finish", when="after", call=2),
    "at a barrier": Fault(at=f"{COORDINATOR}.arrive", when="after", call=2),
    "inside the critical transaction": Fault(at=f"{TARGET}:Steps.run", when="after"),
    "between the critical transaction and its end": Fault(at=f"{COORDINATOR}.finish_serial", when="before"),
    "between positions and acknowledgement": Fault(at=f"{COORDINATOR}.acknowledge", when="before", call=2),
    "between the log's manifest and the slot": Fault(
        at="airflow_parallel_apply.pipeline.log.writer:DirectoryLogWriter.commit", when="after", call=2
    ),
    "between capture and plan": Fault(
        at="airflow_parallel_apply.pipeline.apply.capture_turn:extend_plan", when="before", call=2
    ),
    "inside the plan's transaction": Fault(
        at="airflow_parallel_apply.pipeline.ledger.postgres.plan:PlanTable._row", when="before"
    ),
    "inside a modify of the queue": Fault(
        at="airflow_parallel_apply.queue.postgres.modify:_lock", when="after", call=5
    ),
    "between the bound and its end of capture": Fault(at=f"{COORDINATOR}.settle", when="after"),
}
"""The places where a lane dies, or falls asleep."""


@pytest.fixture
def written(scene: Scene) -> Scene:
    """Several units for each of three channels, a serialization point, rows without a key."""
    return write_units(scene)


@pytest.mark.parametrize(
    "place",
    variants(
        PLACES,
        gated=[
            "while it stages",
            "between staging and commit",
            "between commit and finish",
            "between finish and feed",
            "at a barrier",
            "inside the critical transaction",
            "between the critical transaction and its end",
            "between positions and acknowledgement",
            "between capture and plan",
            "inside the plan's transaction",
            "inside a modify of the queue",
            "between the bound and its end of capture",
            "between the log's manifest and the slot",
        ],
    ),
)
def test_what_a_killed_lane_held_is_carried_on_by_another(written: Scene, place: str) -> None:
    require_repeatable(written, finish_after_kill(written, PLACES[place]))


@pytest.mark.parametrize(
    "place",
    variants(
        [
            "between staging and commit",
            "inside the target's transaction",
            "between finish and feed",
            "inside the critical transaction",
            "between positions and acknowledgement",
            "between the log's manifest and the slot",
            "inside the plan's transaction",
            "inside a modify of the queue",
        ],
        seldom=[
            "between finish and feed",
            "between positions and acknowledgement",
            "between the log's manifest and the slot",
            "inside the plan's transaction",
            "inside a modify of the queue",
        ],
        gated=["between staging and commit", "inside the target's transaction", "inside the critical transaction"],
    ),
)
def test_a_lane_that_sleeps_past_its_lease_changes_nothing_when_it_wakes(written: Scene, place: str) -> None:
    finish_while_asleep(written, PLACES[place], committed)
    require_later_run(written)


@gated
def test_a_run_whose_owner_is_dead_is_taken_over_when_its_lease_is_over_and_not_before(written: Scene) -> None:
    opened = written.open("first")
    lane = written.start_lane(opened, fault=Fault(at=f"{TARGET}:move", when="before", call=4, signal=signal.SIGSTOP))
    lane.wait_stopped()
    with closing(open_pipeline(written.rig.target, "p")) as session:
        # The lane's last sign of life, which it had no time for.
        session.ledger.renew_lease(opened.generation, timedelta(minutes=1))
        with pytest.raises(LeaseBusy, match="first"):
            written.open("second")
        session.ledger.renew_lease(opened.generation, timedelta(seconds=1))
    wait_until(lambda: _opens(written, "second"), what="the first run's lease to end")
    written.rerun("second")
    written.require_equal()
    before = written.positions()
    lane.signal(signal.SIGCONT)
    assert lane.wait() == 1, "a lane of a generation that is over fails"
    assert "Clear the task open" in lane.tail()
    assert written.positions() == before
    written.require_equal()


@gated
def test_a_capture_killed_between_the_logs_manifest_and_the_slot_is_repeated_without_a_change(written: Scene) -> None:
    capture = written.start_capture("run", fault=PLACES["between the log's manifest and the slot"])
    assert capture.wait() in (0, -signal.SIGKILL), capture.tail()
    capture = written.start_capture(
        "run", fault=Fault(at="airflow_parallel_apply.pipeline.log.writer:DirectoryLogWriter.commit", when="after")
    )
    assert capture.wait() == -signal.SIGKILL, capture.tail()
    written.rerun("run")
    written.require_equal()


@gated
def test_a_lane_goes_on_with_a_new_server_when_spark_is_killed_while_it_stages(spark_scene: Scene) -> None:
    spark_scene.rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text)")
    spark_scene.rig.prepare()
    spark_scene.rig.write("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 2000) i", "UPDATE t SET v = 'b'")
    opened = spark_scene.open("run")
    assert spark_scene.spark_directory is not None
    with psycopg.connect(spark_scene.rig.target_dsn) as connection:
        # Staging copies the table's definition, and waits for this lock.
        connection.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        lane = spark_scene.start_lane(opened)
        wait_until(lambda: _waits_for_a_lock(spark_scene), what="Spark to stage")
        killed, _ = spark_processes(spark_scene.spark_directory)
        os.kill(killed, signal.SIGKILL)
    report = lane.report()
    assert report is not None, lane.tail()
    assert spark_processes(spark_scene.spark_directory)[0] != killed, f"{report} {lane.tail()}"
    spark_scene.close(opened)
    spark_scene.require_equal()


def _opens(scene: Scene, run_id: str) -> bool:
    try:
        scene.open(run_id)
    except LeaseBusy:
        return False
    return True


def _waits_for_a_lock(scene: Scene) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pa:%:%' AND wait_event = 'relation'"
    return scene.rig.rows(query) != [(0,)]
