"""The id of the lanes' Spark session: the same for all, told by the queue alone, and gone with the run."""

from __future__ import annotations

from pathlib import Path

from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.queue import open_queue
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

    def asked(*, make: bool) -> str | None:
        return run.shared_session(opened, config, rig.target, None, make=make)

    assert asked(make=True) == asked(make=False) == "of open"
    queue = open_queue(target_dsn)
    (kept,) = [task for task in queue.tasks(f"p/{opened.generation}/coordinator") if "session_id" in task.value]
    queue.modify(claimant="test", delete=[kept.ref])
    assert asked(make=False) is None
    made = asked(make=True)
    assert made not in (None, "of open")
    assert asked(make=True) == made
    rig.apply(opened)
    rig.close(opened)
    assert queue.queue_stats(prefix=["p/"]) == ()
    queue.close()
