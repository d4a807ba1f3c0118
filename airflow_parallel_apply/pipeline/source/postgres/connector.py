"""Opens sources of the scheme `postgresql`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.model.removal import Removal
from airflow_parallel_apply.pipeline.source.postgres.ddl_capture import install_ddl_capture
from airflow_parallel_apply.pipeline.source.postgres.drop import drop_commands, drop_source
from airflow_parallel_apply.pipeline.source.postgres.lsn import lsn_text, parse_lsn
from airflow_parallel_apply.pipeline.source.postgres.session import Session, statement
from airflow_parallel_apply.pipeline.source.postgres.setup.adoption import PostgresAdopting, adopting
from airflow_parallel_apply.pipeline.source.postgres.slot.slot_watch import slot_trouble
from airflow_parallel_apply.pipeline.source.postgres.source import PostgresSource
from airflow_parallel_apply.pipeline.source.protocol import OpenLog, Source


class PostgresConnector:
    """See `SourceConnector`. The stream is a slot, and a publication of the same name."""

    def open(self, endpoint: Endpoint, config: PipelineConfig) -> Source:
        return PostgresSource(endpoint, config)

    def drop(self, endpoint: Endpoint, stream: str, *, force: bool) -> Removal:
        with _session(endpoint, f"{stream} drop", op="drop") as session:
            return drop_source(session, stream, force=force)

    def drop_commands(self, stream: str) -> tuple[str, ...]:
        return drop_commands(stream)

    def warnings(self, endpoint: Endpoint, stream: str, *, much_retained_bytes: int) -> tuple[Finding, ...]:
        with _session(endpoint, f"{stream} status", op="status") as session:
            return slot_trouble(session, stream, much_retained_bytes=much_retained_bytes)

    def followed(self, endpoint: Endpoint) -> dict[str, frozenset[str]]:
        with _session(endpoint, "check", op="check") as session:
            catalog = session.catalog()
            # Most targets publish nothing, which is asked for cheaply in each run.
            if catalog.execute("SELECT FROM pg_catalog.pg_publication LIMIT 1").fetchone() is None:
                return {}
            rows = catalog.execute(statement("published")).fetchall()
            return {log_id: frozenset(tables) for log_id, tables in rows if log_id is not None}

    def show_offset(self, offset: Offset) -> str:
        return lsn_text(offset)

    def parse_offset(self, text: str) -> Offset:
        return parse_lsn(text)

    def adopting(
        self, endpoint: Endpoint, config: PipelineConfig, log: OpenLog, *, op: str
    ) -> AbstractContextManager[PostgresAdopting]:
        return adopting(endpoint, config, log, op=op)

    def install_ddl_capture(self, endpoint: Endpoint, *, grant_to: Sequence[str]) -> tuple[str, ...]:
        with _session(endpoint, "install-ddl-capture", op="install-ddl-capture") as session:
            return install_ddl_capture(session, grant_to=grant_to)


@contextmanager
def _session(endpoint: Endpoint, name: str, *, op: str) -> Iterator[Session]:
    with closing(Session(endpoint, application_name=f"parallel_apply {name}")) as session, session.errors(op):
        yield session
