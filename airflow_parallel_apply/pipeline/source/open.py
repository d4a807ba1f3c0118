"""Opening a source by its endpoint's scheme: one of ours, or one that was installed beside this package (`schemes`)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.open import POSTGRESQL
from airflow_parallel_apply.pipeline.schemes import Schemes
from airflow_parallel_apply.pipeline.source.abilities import Adoptable, Adopting, SendsDdl
from airflow_parallel_apply.pipeline.source.protocol import OpenLog, Source, SourceConnector

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


def followed_at(endpoint: Endpoint) -> dict[str, frozenset[str]]:
    """The tables that pipelines follow in a database, by the id of each one's log; none where it can be no source.
    Errors: `Unavailable`, `ConfigurationError`.
    """
    return source_connector(endpoint).followed(endpoint) if endpoint.scheme in SOURCES.known() else {}


def install_ddl_capture_at(endpoint: Endpoint, *, grant_to: Sequence[str] = ()) -> tuple[str, ...]:
    """See `SendsDdl`. Errors: `Unavailable`, `ConfigurationError`."""
    connector = source_connector(endpoint)
    if not isinstance(connector, SendsDdl):
        raise _unable(endpoint, "install-ddl-capture")
    return connector.install_ddl_capture(endpoint, grant_to=grant_to)


def open_adopting(
    endpoint: Endpoint, config: PipelineConfig, log: OpenLog, *, op: str
) -> AbstractContextManager[Adopting]:
    """See `Adoptable`. Errors: `ConfigurationError` for a source that offers no such thing."""
    connector = source_connector(endpoint)
    if not isinstance(connector, Adoptable):
        raise _unable(endpoint, op)
    return connector.adopting(endpoint, config, log, op=op)


def _unable(endpoint: Endpoint, op: str) -> ConfigurationError:
    return ConfigurationError(
        f"{op} is not for a source at {endpoint.scheme}://", op=op, hint="Its connector does not offer this."
    )
