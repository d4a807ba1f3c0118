"""Opening a target by its endpoint's scheme: one of ours, or one that was installed beside this package (`schemes`)."""

from __future__ import annotations

from typing import Final

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.open import POSTGRESQL
from airflow_parallel_apply.pipeline.schemes import Schemes
from airflow_parallel_apply.pipeline.target.protocol import Target, TargetConnector
from airflow_parallel_apply.pipeline.target.relations import LogRelations

TARGETS: Final = Schemes(
    thing="target",
    group="airflow_parallel_apply.targets",
    ours={
        POSTGRESQL: "airflow_parallel_apply.pipeline.target.postgres.connector:PostgresConnector",
        "delta": "airflow_parallel_apply.pipeline.target.delta.connector:DeltaConnector",
        "mariadb": "airflow_parallel_apply.pipeline.target.mariadb.connector:MariaDbConnector",
        "mysql": "airflow_parallel_apply.pipeline.target.mariadb.connector:MariaDbConnector",
        "files": "airflow_parallel_apply.pipeline.target.files.connector:FilesConnector",
        "kafka": "airflow_parallel_apply.pipeline.target.kafka.connector:KafkaConnector",
    },
)


def target_connector(endpoint: Endpoint) -> TargetConnector:
    """The connector that the endpoint's scheme names. Errors: `ConfigurationError` for an unknown one."""
    connector: TargetConnector = TARGETS.load(endpoint.scheme)()
    return connector


def open_target(endpoint: Endpoint, pipeline: str, *, log_url: str | None = None) -> Target:
    """A target session for one thread, without its ledger. Without `log_url` it can tell, but apply nothing. Errors:
    `ConfigurationError` for an unknown scheme.
    """
    return target_connector(endpoint).open(endpoint, pipeline, relations=LogRelations(log_url, pipeline))


def logs_applied_at(endpoint: Endpoint) -> dict[str, str]:
    """The id of the log of each pipeline that applies to a database, by the pipeline's name; none where it can be no
    target. Errors: `Unavailable`, `ConfigurationError`.
    """
    return target_connector(endpoint).applied_logs(endpoint) if endpoint.scheme in TARGETS.known() else {}
