"""Opening a source by its endpoint; PostgreSQL first."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.source.postgres import PostgresSource
from airflow_parallel_apply.pipeline.source.protocol import Source


def open_source(endpoint: Endpoint, config: PipelineConfig) -> Source:
    """A source for one thread."""
    return PostgresSource(endpoint, config)
