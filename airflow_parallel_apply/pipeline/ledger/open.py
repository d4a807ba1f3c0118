"""Opening a pipeline's ledger together with its target."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.target.open import target_connector
from airflow_parallel_apply.pipeline.target.relations import LogRelations


def open_pipeline(endpoint: Endpoint, pipeline: str, *, log_url: str | None = None) -> PipelineSession:
    """A session for one thread. Without `log_url` it can tell and steer, but apply nothing. Errors:
    `ConfigurationError` for a target that is unknown, or can hold no ledger.
    """
    connector, relations = target_connector(endpoint), LogRelations(log_url, pipeline)
    opened = connector.open_with_ledger(endpoint, pipeline, relations=relations)
    if opened is None:
        raise ConfigurationError(f"a target in {endpoint.scheme}:// can hold no ledger", pipeline=pipeline)
    target, ledger = opened
    return PipelineSession(ledger=ledger, target=target, is_one_database=True)
