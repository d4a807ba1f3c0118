"""The id of the lanes' Spark session: the same for all, told by the queue alone, and gone with the run."""

from __future__ import annotations

import uuid
from pathlib import Path

from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.queue import open_queue
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import ConnectAccess, close_session, open_session, release_session
from tests.support.rig import Rig


def test_lanes_find_the_session_of_open_and_agree_on_another_where_the_queue_was_lost(
    source_dsn: str, target_dsn: str, tmp_path: Path
) -> None:
    config = PipelineConfig(pipeline="p", log_url=str(tmp_path / "log"), start=Start.EMPTY, channels=2)
    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    rig.both("CREATE TABLE t (id int PRIMARY KEY)")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1)")
    rig.capture("r")
    opened = run.open_run(config, rig.source, rig.target, owner="r", run_id="r", session_id="of open")
    again = run.OpenedRun.from_json({**opened.to_json(), "session_id": "of an older release"})
    assert again == opened

    def asked(*, make: bool, closed: str | None = None) -> str | None:
        return run.shared_session(opened, config, rig.target, None, make=make, closed=closed)

    assert asked(make=True) == asked(make=False) == "of open"
    queue = open_queue(target_dsn)
    (kept,) = [task for task in queue.tasks(f"p/{opened.generation}/coordinator") if "session_id" in task.value]
    queue.modify(claimant="test", delete=[kept.ref])
    assert asked(make=False) is None
    made = asked(make=True)
    assert made not in (None, "of open")
    assert asked(make=True) == made
    another = asked(make=True, closed=made)
    assert another not in (None, made)
    # By whoever finds it closed later.
    assert asked(make=True, closed=made) == asked(make=False) == another
    rig.apply(opened)
    rig.close(opened)
    assert queue.queue_stats(prefix=["p/"]) == ()
    queue.close()


def test_a_session_that_the_server_has_closed_is_followed_by_another(spark_server: ServerLease) -> None:
    dead, alive = str(uuid.uuid4()), str(uuid.uuid4())
    close_session(open_session(spark_server.url, dead))
    release_session(spark_server.url, dead)
    access = ConnectAccess(url=spark_server.url, session_id=lambda closed: alive if closed == dead else dead)
    session = access.open()
    try:
        assert session.session_id == alive
        assert session.range(3).count() == 3
    finally:
        access.close(session)
        release_session(spark_server.url, alive)
