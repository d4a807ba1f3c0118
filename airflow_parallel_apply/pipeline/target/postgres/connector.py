"""Opens targets of the scheme `postgresql`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final

import psycopg

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.pipeline.ledger.postgres.ledger import PostgresLedger
from airflow_parallel_apply.pipeline.ledger.protocol import Ledger
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.target.loading import Loader
from airflow_parallel_apply.pipeline.target.postgres.drop import drop_commands
from airflow_parallel_apply.pipeline.target.postgres.load.loader import PostgresLoader
from airflow_parallel_apply.pipeline.target.postgres.load.preparing import Claim
from airflow_parallel_apply.pipeline.target.postgres.positions.applied import applied_logs
from airflow_parallel_apply.pipeline.target.postgres.session import Session
from airflow_parallel_apply.pipeline.target.postgres.target import PostgresTarget
from airflow_parallel_apply.pipeline.target.protocol import Target
from airflow_parallel_apply.pipeline.target.relations import Relations

_PROBE_SECONDS: Final = 10


class PostgresConnector:
    """See `TargetConnector`."""

    def open(
        self, endpoint: Endpoint, pipeline: str, *, relations: Relations, ledger: Callable[[], str] | None = None
    ) -> Target:
        return PostgresTarget(_session(endpoint, pipeline, relations), relations=relations, ledger=ledger)

    def open_with_ledger(self, endpoint: Endpoint, pipeline: str, *, relations: Relations) -> tuple[Target, Ledger]:
        session = _session(endpoint, pipeline, relations)
        return PostgresTarget(session, relations=relations), PostgresLedger(session)

    def takes_changes(self, endpoint: Endpoint) -> bool:  # noqa: ARG002  # net changes are all that a table needs
        return False

    def loader(
        self,
        endpoint: Endpoint,
        unit: Unit,
        relations: Sequence[Relation],
        *,
        commit_times: CommitTimes | None = None,  # noqa: ARG002  # tables do not keep them
    ) -> Loader:
        return PostgresLoader(
            url=endpoint.url,
            pipeline=unit.pipeline,
            channel=unit.channel,
            token=unit.token,
            group=unit.group,
            claim=_claim(unit),
            direct=unit if unit.is_direct else None,
            relations=tuple(relations),
        )

    def probe(self, endpoint: Endpoint) -> None:
        try:
            psycopg.connect(endpoint.url, connect_timeout=_PROBE_SECONDS).close()
        except psycopg.Error as error:
            raise Unavailable(" ".join(str(error).split()), op="probe") from error

    def drop_commands(self, pipeline: str) -> tuple[str, ...]:
        return drop_commands(pipeline)

    def applied_logs(self, endpoint: Endpoint) -> dict[str, str]:
        name = "parallel_apply check"
        with closing(Session(endpoint.url, pipeline="", name=name)) as session, session.errors("check"):
            return applied_logs(session)


def _claim(unit: Unit) -> Claim | None:
    if unit.group is None or not unit.prepares:
        return None
    return Claim(
        pipeline=unit.pipeline,
        channel=unit.channel,
        group=unit.group,
        generation=unit.generation,
        token=unit.token,
        after_seqno=unit.after_seqno,
        origin=unit.origin,
    )


def _session(endpoint: Endpoint, pipeline: str, relations: Relations) -> Session:
    return Session(endpoint.url, pipeline=pipeline, definitions=relations.definitions)
