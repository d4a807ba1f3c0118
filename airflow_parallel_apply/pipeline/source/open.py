"""Opening a source by its endpoint's scheme: one of ours, or one that was installed beside this package (`schemes`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from airflow_parallel_apply.pipeline.config import POSTGRESQL, Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.schemes import Schemes
from airflow_parallel_apply.pipeline.source.protocol import Source, SourceConnector

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.source.postgres.adoption import Adoption

SOURCES: Final = Schemes(
    thing="source",
    group="airflow_parallel_apply.sources",
    ours={POSTGRESQL: "airflow_parallel_apply.pipeline.source.postgres.connector:PostgresConnector"},
)


def source_connector(endpoint: Endpoint) -> SourceConnector:
    """The connector that the endpoint's scheme names. Errors: `ConfigurationError` for an unknown one."""
    connector: SourceConnector = SOURCES.load(endpoint.scheme)()
    return connector


def open_source(endpoint: Endpoint, config: PipelineConfig) -> Source:
    """A source for one thread. Errors: `ConfigurationError` for an unknown scheme."""
    return source_connector(endpoint).open(endpoint, config)


def published_at(endpoint: Endpoint) -> dict[str, frozenset[str]]:
    """The tables that pipelines follow in a database, by the id of each one's log; none where it can be no source.
    Errors: `Unavailable`, `ConfigurationError`.
    """
    return source_connector(endpoint).published(endpoint) if endpoint.scheme in SOURCES.known() else {}


def install_ddl_capture_at(endpoint: Endpoint, *, grant_to: Sequence[str] = ()) -> tuple[str, ...]:
    """Let DDL messages of a database prove who sent them. Errors: `Unavailable`, `ConfigurationError`."""
    _require_postgres(endpoint, "install-ddl-capture")
    from airflow_parallel_apply.pipeline.source.postgres.connector import install_ddl_capture_at as install

    return install(endpoint, grant_to=grant_to)


def adopt_at_source(endpoint: Endpoint, config: PipelineConfig) -> Adoption:
    """Record another server as the log's source. Errors: those of `adopt_source`."""
    _require_postgres(endpoint, "adopt-source")
    from airflow_parallel_apply.pipeline.source.postgres.adoption import adopt_source

    return adopt_source(endpoint, config)


def release_at_source(endpoint: Endpoint, config: PipelineConfig) -> Adoption:
    """Move the slot behind all that was committed, before an upgrade. Errors: those of `release_slot`."""
    _require_postgres(endpoint, "adopt-source")
    from airflow_parallel_apply.pipeline.source.postgres.adoption import release_slot

    return release_slot(endpoint, config)


def _require_postgres(endpoint: Endpoint, op: str) -> None:
    if endpoint.scheme != POSTGRESQL:
        raise ConfigurationError(
            f"{op} is for a source in PostgreSQL; this one is {endpoint.scheme}://",
            op=op,
            hint=f"Give a {POSTGRESQL}:// address.",
        )
