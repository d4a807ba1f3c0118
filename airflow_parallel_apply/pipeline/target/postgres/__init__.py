"""PostgreSQL as a target."""

from airflow_parallel_apply.pipeline.target.postgres.naming import holder_session
from airflow_parallel_apply.pipeline.target.postgres.target import PostgresTarget

__all__ = ["PostgresTarget", "holder_session"]
