"""PostgreSQL as a source: a logical slot read with `pgoutput`."""

from airflow_parallel_apply.pipeline.source.postgres.source import PostgresSource

__all__ = ["PostgresSource"]
