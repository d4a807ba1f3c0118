"""Opening a source by its endpoint; PostgreSQL first."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.finding import Finding
from airflow_parallel_apply.pipeline.removal import Removal
from airflow_parallel_apply.pipeline.source.postgres import PostgresSource
from airflow_parallel_apply.pipeline.source.postgres.adoption import adopt_source as adopt_at_source
from airflow_parallel_apply.pipeline.source.postgres.adoption import release_slot as release_at_source
from airflow_parallel_apply.pipeline.source.postgres.ddl_capture import install_ddl_capture
from airflow_parallel_apply.pipeline.source.postgres.drop import drop_commands, drop_source
from airflow_parallel_apply.pipeline.source.postgres.prepare import slot_name
from airflow_parallel_apply.pipeline.source.postgres.session import Session, statement
from airflow_parallel_apply.pipeline.source.postgres.slot_watch import slot_trouble
from airflow_parallel_apply.pipeline.source.protocol import Source

__all__ = [
    "adopt_at_source",
    "drop_at_source",
    "install_ddl_capture_at",
    "open_source",
    "published_at",
    "release_at_source",
    "slot_of",
    "source_drop_commands",
    "watch_slot",
]


def open_source(endpoint: Endpoint, config: PipelineConfig) -> Source:
    """A source for one thread."""
    return PostgresSource(endpoint, config)


def drop_at_source(endpoint: Endpoint, pipeline: str, *, force: bool) -> Removal:
    """Remove a pipeline's slot and publication. Errors: `Unavailable`, `ConfigurationError`."""
    session = Session(endpoint, application_name=f"parallel_apply {pipeline} drop")
    try:
        with session.errors("drop"):
            return drop_source(session, slot_name(pipeline), force=force)
    finally:
        session.close()


def install_ddl_capture_at(endpoint: Endpoint, *, grant_to: Sequence[str] = ()) -> tuple[str, ...]:
    """Let DDL messages of a database prove who sent them. Errors: `Unavailable`, `ConfigurationError`."""
    session = Session(endpoint, application_name="parallel_apply install-ddl-capture")
    try:
        with session.errors("install-ddl-capture"):
            return install_ddl_capture(session, grant_to=grant_to)
    finally:
        session.close()


def watch_slot(endpoint: Endpoint, pipeline: str, *, much_wal_bytes: int) -> tuple[Finding, ...]:
    """What the pipeline's slot does to its source. Errors: `Unavailable`, `ConfigurationError`."""
    session = Session(endpoint, application_name=f"parallel_apply {pipeline} status")
    try:
        with session.errors("status"):
            return slot_trouble(session, slot_name(pipeline), much_wal_bytes=much_wal_bytes)
    finally:
        session.close()


def published_at(endpoint: Endpoint) -> dict[str, frozenset[str]]:
    """The tables that pipelines follow in a database, by the id of each one's log. Errors: `Unavailable`,
    `ConfigurationError`.
    """
    session = Session(endpoint, application_name="parallel_apply check")
    try:
        with session.errors("check"):
            rows = session.catalog().execute(statement("published")).fetchall()
            return {log_id: frozenset(tables) for log_id, tables in rows if log_id is not None}
    finally:
        session.close()


def slot_of(pipeline: str) -> str:
    """The name of its slot, and of its publication."""
    return slot_name(pipeline)


def source_drop_commands(pipeline: str) -> tuple[str, ...]:
    """The SQL that does the same."""
    return drop_commands(slot_name(pipeline))
