"""Opens targets of the schemes `mariadb` and `mysql`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.ledger.protocol import Ledger
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.target.loading import Loader
from airflow_parallel_apply.pipeline.target.mariadb.address import parse_address
from airflow_parallel_apply.pipeline.target.mariadb.drop import drop_commands
from airflow_parallel_apply.pipeline.target.mariadb.loader import MariaDbLoader
from airflow_parallel_apply.pipeline.target.mariadb.naming import DATABASE
from airflow_parallel_apply.pipeline.target.mariadb.schema import is_installed
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.target import MariaDbTarget
from airflow_parallel_apply.pipeline.target.protocol import Target
from airflow_parallel_apply.pipeline.target.relations import Relations


class MariaDbConnector:
    """See `TargetConnector`."""

    def open(
        self, endpoint: Endpoint, pipeline: str, *, relations: Relations, ledger: Callable[[], str] | None = None
    ) -> Target:
        return MariaDbTarget(_session(endpoint, pipeline), relations=relations, ledger=ledger)

    def open_with_ledger(
        self, endpoint: Endpoint, pipeline: str, *, relations: Relations
    ) -> tuple[Target, Ledger] | None:
        del endpoint, pipeline, relations
        return None

    def loader(
        self,
        endpoint: Endpoint,
        unit: Unit,
        relations: Sequence[Relation],
        *,
        commit_times: CommitTimes | None = None,  # noqa: ARG002  # tables do not keep them
    ) -> Loader:
        return MariaDbLoader(address=parse_address(endpoint.url), unit=unit, relations=tuple(relations))

    def takes_changes(self, endpoint: Endpoint) -> bool:  # noqa: ARG002  # net changes are all that a table needs
        return False

    def probe(self, endpoint: Endpoint) -> None:
        with closing(_session(endpoint, "")) as session, session.errors("probe"):
            session.row("SELECT 1")

    def drop_commands(self, pipeline: str) -> tuple[str, ...]:
        return drop_commands(pipeline)

    def applied_logs(self, endpoint: Endpoint) -> dict[str, str]:
        with closing(_session(endpoint, "")) as session:
            if not is_installed(session):
                return {}
            with session.errors("check"):
                return dict(session.rows(f"SELECT pipeline, log_id FROM {DATABASE}.pipeline"))


def _session(endpoint: Endpoint, pipeline: str) -> Session:
    return Session(parse_address(endpoint.url), pipeline=pipeline)
