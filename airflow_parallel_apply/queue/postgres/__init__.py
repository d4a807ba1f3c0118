"""The queue in PostgreSQL 15 and newer: tables in a schema of any database, no further service."""

from airflow_parallel_apply.queue.postgres.backend import PostgresQueue
from airflow_parallel_apply.queue.postgres.migrate import migrate
from airflow_parallel_apply.queue.postgres.statements import DEFAULT_SCHEMA

__all__ = ["DEFAULT_SCHEMA", "PostgresQueue", "migrate"]
