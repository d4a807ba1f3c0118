"""Opening a pipeline's ledger together with its target."""

from __future__ import annotations

from functools import cache
from typing import Final

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.ledger.protocol import LedgerConnector
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.open import POSTGRESQL
from airflow_parallel_apply.pipeline.schemes import Schemes
from airflow_parallel_apply.pipeline.target.open import target_connector
from airflow_parallel_apply.pipeline.target.relations import LogRelations

LEDGERS: Final = Schemes(
    thing="ledger",
    group="airflow_parallel_apply.ledgers",
    ours={POSTGRESQL: "airflow_parallel_apply.pipeline.ledger.postgres.connector:PostgresConnector"},
)


def open_pipeline(endpoint: Endpoint, pipeline: str, *, log_url: str | None = None) -> PipelineSession:
    """A session for one thread with a target and its ledger: in the target's own database, or at `endpoint.ledger`.
    Without `log_url` it can tell and steer, but apply nothing. Errors: `ConfigurationError` for an unknown scheme, and
    for a target that can hold no ledger where none is named.
    """
    connector, relations = target_connector(endpoint), LogRelations(log_url, pipeline)
    if endpoint.ledger is not None and endpoint.ledger.place != endpoint.place:
        keeping: LedgerConnector = LEDGERS.load(endpoint.ledger.scheme)()
        ledger = keeping.open(endpoint.ledger, pipeline, target=cache(lambda: str(target.identity())))
        target = connector.open(endpoint, pipeline, relations=relations, ledger=cache(ledger.identity))
        return PipelineSession(ledger=ledger, target=target, is_one_database=False)
    opened = connector.open_with_ledger(endpoint, pipeline, relations=relations)
    if opened is None:
        raise ConfigurationError(
            f"a target in {endpoint.scheme}:// can hold no ledger",
            pipeline=pipeline,
            hint="Name a PostgreSQL database for it: ledger_conn_id, --ledger.",
        )
    target, ledger = opened
    return PipelineSession(ledger=ledger, target=target, is_one_database=True)
