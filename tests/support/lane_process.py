"""One lane in a process of its own, for tests and benchmarks that kill lanes: `python -m tests.support.lane_process`.

Reads one JSON object from standard input, prints the lane's report as JSON; SIGTERM cancels.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from contextlib import ExitStack
from typing import Any

from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.apply.lane import LaneSignals
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, TablePatterns


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    order: dict[str, Any] = json.load(sys.stdin)
    tables = TablePatterns(**{name: tuple(value) for name, value in order["config"].pop("tables").items()})
    from datetime import timedelta

    lease = timedelta(seconds=order["config"].pop("lease_seconds"))
    config = PipelineConfig(**order["config"], tables=tables, lease=lease)
    source = Endpoint(conn_id="source", dsn=order["source_dsn"])
    target = Endpoint(conn_id="target", dsn=order["target_dsn"])
    opened = run.OpenedRun.from_json(order["opened"])
    cancelled: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: cancelled.append(number))
    with ExitStack() as stack:
        stage = stack.enter_context(_stage(config, target, opened.session_id))
        report = run.apply(
            opened,
            config,
            source,
            target,
            lane=order["lane"],
            stage=stage,
            signals=LaneSignals(
                stop_requested=lambda: False, cancelled=lambda: bool(cancelled), report=lambda report: None
            ),
        )
    print(json.dumps(report.to_json()))


def _stage(config: PipelineConfig, target: Endpoint, session_id: str) -> Any:
    from airflow_parallel_apply.spark.connect import spark_stage

    return spark_stage(None, config, target, session_id=session_id)


if __name__ == "__main__":
    main()
