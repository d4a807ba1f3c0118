"""Arguments that name a database, a queue or a Spark: an address as it is, or else the id of an Airflow connection.

Errors of all: `ConfigurationError` that says what to give; those of the connections where Airflow resolves them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from airflow_parallel_apply.commands import named
from airflow_parallel_apply.pipeline.config import Endpoint, QueueEndpoint, RouterEndpoint
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.open import is_address, is_dsn
from airflow_parallel_apply.service.address import is_service
from airflow_parallel_apply.spark.cluster import Cluster
from airflow_parallel_apply.spark.endpoint import EMBEDDED_SPARK, SparkEndpoint

_CLUSTER_SCHEMES: Final = ("spark://", "k8s://", "yarn", "local")


def database_at(text: str, side: str) -> Endpoint:
    """The `source`, the `target` or the `ledger`."""
    if is_address(text):
        return named(text, f"--{side}")
    try:
        from airflow_parallel_apply.hooks.connections import database
    except ImportError as error:
        raise _no_airflow(f"--{side} {text!r} is no connection string", "postgresql://user@host:port/db") from error
    return database(text, parameter=f"--{side}")


def target_at(text: str, ledger: str) -> Endpoint:
    """The target, with its ledger where one is named."""
    found = database_at(text, "target")
    return replace(found, ledger=database_at(ledger, "ledger")) if ledger else found


def queue_at(text: str) -> QueueEndpoint | None:
    """Empty: None, the one in the target."""
    if not text:
        return None
    if is_service(text) or is_dsn(text):
        return QueueEndpoint(conn_id="--queue", dsn=text)
    try:
        from airflow_parallel_apply.hooks.connections import queue
    except ImportError as error:
        raise _no_airflow(f"--queue {text!r} is no connection string", "grpc://host:port or a libpq string") from error
    return queue(text, parameter="--queue")


def router_at(text: str) -> RouterEndpoint | None:
    """Empty: None, the embedded one of this host."""
    if not text:
        return None
    if is_service(text):
        return RouterEndpoint(conn_id="--router", url=text)
    try:
        from airflow_parallel_apply.hooks.connections import pipeline_router
    except ImportError as error:
        raise _no_airflow(f"--router {text!r} is no address of a router", "grpcs://host:port") from error
    return pipeline_router(text, parameter="--router")


def spark_at(text: str) -> SparkEndpoint:
    """The Spark that the DAG's `spark_conn_id` names, or that an address points to."""
    if not text:
        return EMBEDDED_SPARK
    if text.startswith("sc://"):
        return SparkEndpoint(conn_id="--spark", url=text)
    if text.startswith(_CLUSTER_SCHEMES):
        return SparkEndpoint(conn_id="--spark", cluster=Cluster(master=text))
    try:
        from airflow_parallel_apply.hooks.connections import spark
    except ImportError as error:
        raise _no_airflow(
            f"--spark {text!r} is no address of a Spark", "sc://host:port or spark://host:port"
        ) from error
    return spark(text)


def _no_airflow(what: str, give: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what}, and Airflow, which could resolve it, is not installed here", hint=f"Give {give}."
    )
