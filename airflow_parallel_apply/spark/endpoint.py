"""Chooses the Spark: a Connect server, a cluster that applications are submitted to, or the embedded one of a host."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.schemes import not_installed
from airflow_parallel_apply.spark.cluster import Cluster

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.copy.protocol import Copier
    from airflow_parallel_apply.pipeline.model.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkEndpoint:
    """The place where Spark runs: at a `url`, on a `cluster`, or, with neither, in the embedded server of the worker's
    host.
    """

    conn_id: str
    url: str | None = field(default=None, repr=False)
    """`sc://host:port/;…`, with the token where there is one: a secret, kept out of every text form."""
    cluster: Cluster | None = None

    @property
    def is_embedded(self) -> bool:
        """True if there is no connection, so that Spark runs in the embedded server."""
        return self.url is None and self.cluster is None


EMBEDDED_SPARK: Final = SparkEndpoint(conn_id="")


def copier_on(
    spark: SparkEndpoint, config: PipelineConfig, source: Endpoint, target: Endpoint
) -> AbstractContextManager[Copier]:
    """Open the copier of an initial copy. Errors: `ConfigurationError` where Spark is not installed."""
    try:
        from airflow_parallel_apply.spark.copier import spark_copier
        from airflow_parallel_apply.spark.submitted.copying import submitted_copier
        from airflow_parallel_apply.spark.submitted.messages import CopyWork
    except ModuleNotFoundError as missing:
        raise not_installed(missing, extra="spark") from missing

    if spark.cluster is None:
        return spark_copier(spark.url, source, target)
    return submitted_copier(
        spark.cluster,
        CopyWork(source=source, target=target, log_url=config.log_url),
        name=f"parallel-apply {config.pipeline} copy",
        cores=config.lane_count,
    )


def findings_from(spark: SparkEndpoint, config: PipelineConfig, target: Endpoint) -> tuple[Finding, ...]:
    """Find what the executors lack. The embedded server's workers share this host, user and Python, so they are not
    asked.

    Errors: Spark's own; `ConfigurationError` where it is not installed.
    """
    try:
        from airflow_parallel_apply.spark.preflight import worker_findings
        from airflow_parallel_apply.spark.submitted.looking import cluster_findings
    except ModuleNotFoundError as missing:
        raise not_installed(missing, extra="spark") from missing

    if spark.cluster is not None:
        return cluster_findings(spark.cluster, config, target)
    return () if spark.url is None else worker_findings(spark.url, config.log_url, target)
