"""Opens ledgers of the scheme `postgresql` for targets that are elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.ledger.postgres.ledger import PostgresLedger
from airflow_parallel_apply.pipeline.ledger.protocol import Ledger
from airflow_parallel_apply.pipeline.target.postgres.session import Session


class PostgresConnector:
    """See `LedgerConnector`."""

    def open(self, endpoint: Endpoint, pipeline: str, *, target: Callable[[], str]) -> Ledger:
        return PostgresLedger(Session(endpoint.url, pipeline=pipeline), target=target)
