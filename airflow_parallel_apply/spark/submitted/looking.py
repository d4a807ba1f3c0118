"""`parallel-apply check` on a cluster: an application that looks from its executors and ends."""

from __future__ import annotations

import time
from typing import Final

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.model.finding import Finding, Side, new_finding
from airflow_parallel_apply.spark.classic import ClassicAccess
from airflow_parallel_apply.spark.cluster import Cluster
from airflow_parallel_apply.spark.preflight import session_findings
from airflow_parallel_apply.spark.submitted.link import TaskLink
from airflow_parallel_apply.spark.submitted.messages import Done, Failed, LookWork
from airflow_parallel_apply.spark.submitted.process import DriverProcess

_PATIENCE_SECONDS: Final = 180.0
"""For a first executor and its answer: seconds where there is room, a minute on cold and busy hosts."""
_TICK_SECONDS: Final = 1.0


def cluster_findings(cluster: Cluster, config: PipelineConfig, target: Endpoint) -> tuple[Finding, ...]:
    """Look from as many executors as a run would have. Errors: `ConfigurationError` without Java or Spark's scripts,
    `Unavailable` when the application ended.
    """
    process = DriverProcess(cluster, name=f"parallel-apply {config.pipeline} check", cores=config.lane_count)
    try:
        process.start(LookWork(log_url=config.log_url, target=target))
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            match process.receive(_TICK_SECONDS):
                case Done(result=tuple() as findings):
                    return findings
                case Failed(error=error):
                    raise error
    finally:
        process.close()
    return (
        new_finding(
            Side.SPARK,
            cluster.master,
            f"no executor of {cluster.master} answered within {_PATIENCE_SECONDS:g} s",
            note="Is a worker there with a free core, and does it reach this host, where the driver is?",
        ),
    )


def serve_look(work: LookWork, link: TaskLink, access: ClassicAccess) -> None:
    """In the driver."""
    link.send(Done(result=session_findings(access.open(), work.log_url, work.target)))
