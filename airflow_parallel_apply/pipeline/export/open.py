"""Opening a place and a query by their schemes; the rooms behind them are imported when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.export.options import ExportOptions
from airflow_parallel_apply.pipeline.export.protocol import Place
from airflow_parallel_apply.pipeline.export.query import QueryRows
from airflow_parallel_apply.pipeline.open import POSTGRESQL
from airflow_parallel_apply.pipeline.schemes import Schemes

_TOPICS: Final = "kafka://"

QUERIES: Final = Schemes(
    thing="database of queries",
    group="airflow_parallel_apply.queries",
    ours={POSTGRESQL: "airflow_parallel_apply.pipeline.export.postgres.query:open_postgres_query"},
)


def open_place(url: str, options: ExportOptions, cancelled: Callable[[], bool]) -> Place:
    """The topics of a URL `kafka://…`, or a directory, or the URL of one. Errors: `ConfigurationError`."""
    if url.startswith(_TOPICS):
        from airflow_parallel_apply.pipeline.export.kafka.topics import TopicPlace

        topics: Place = TopicPlace(url, options, cancelled)
        return topics
    from airflow_parallel_apply.pipeline.export.directory import FilesPlace

    return FilesPlace(url, options, cancelled)


def open_query(endpoint: Endpoint, query: str) -> AbstractContextManager[QueryRows]:
    """A session that runs a query. Errors: `Unavailable`, `ConfigurationError`."""
    opened: AbstractContextManager[QueryRows] = QUERIES.load(endpoint.scheme)(endpoint, query)
    return opened
