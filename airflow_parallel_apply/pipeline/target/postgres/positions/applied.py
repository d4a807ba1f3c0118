"""Reads which logs are applied to a database, by whatever pipeline."""

from __future__ import annotations

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA
from airflow_parallel_apply.pipeline.target.postgres.schema import is_installed
from airflow_parallel_apply.pipeline.target.postgres.session import Session


def applied_logs(session: Session) -> dict[str, str]:
    """The id of each pipeline's log; none where the role may not look. Errors: psycopg's own."""
    if not is_installed(session):
        return {}
    # Not by pipelines that have their ledger alone here; those of an earlier release have none elsewhere.
    query = sql.SQL(
        "SELECT pipeline, log_id FROM {} found WHERE coalesce(to_jsonb(found) ->> 'target', '') = ''"
    ).format(sql.Identifier(SCHEMA, "pipeline"))
    try:
        rows = session.connection().execute(query).fetchall()
    except psycopg.errors.InsufficientPrivilege:
        return {}
    return {str(pipeline): str(log_id) for pipeline, log_id in rows}
