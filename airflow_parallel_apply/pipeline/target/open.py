"""Opening a target by its endpoint; PostgreSQL first."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.event import Relation
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.target.postgres.applied import applied_logs
from airflow_parallel_apply.pipeline.target.postgres.drop import drop_commands
from airflow_parallel_apply.pipeline.target.postgres.naming import DEFAULT_SCHEMA
from airflow_parallel_apply.pipeline.target.postgres.session import Session
from airflow_parallel_apply.pipeline.target.postgres.target import PostgresTarget
from airflow_parallel_apply.pipeline.target.protocol import Target


def open_target(endpoint: Endpoint, pipeline: str, *, log_url: str | None = None) -> Target:
    """A target session for one thread. Without `log_url` it can tell and steer, but apply nothing."""
    reader: list[LogReader] = []

    def relation(relation_id: int) -> Relation:
        if log_url is None:
            raise ConfigurationError("this session was opened without a log, so it cannot apply", pipeline=pipeline)
        if not reader:
            reader.append(open_reader(log_url))
        return reader[0].state().relation(relation_id)

    return PostgresTarget(endpoint, pipeline, relations=relation)


def logs_applied_at(endpoint: Endpoint) -> dict[str, str]:
    """The pipelines that apply to a database, by the id of each one's log; none where the role may not look. Errors:
    `Unavailable`, `ConfigurationError`.
    """
    session = Session(endpoint.dsn, pipeline="", schema=DEFAULT_SCHEMA, name="parallel_apply check")
    try:
        with session.errors("check"):
            return applied_logs(session)
    finally:
        session.close()


def target_drop_commands(pipeline: str) -> tuple[str, ...]:
    """The SQL that does what `Target.drop` does."""
    return drop_commands(DEFAULT_SCHEMA, pipeline)
