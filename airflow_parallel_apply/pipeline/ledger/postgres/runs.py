"""The bounds of a pipeline's runs, frozen by run id when a run first opens (law 11)."""

from __future__ import annotations

from datetime import datetime

from psycopg.rows import class_row

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.ledger.postgres.lease import lock_pipeline, pipeline_removed
from airflow_parallel_apply.pipeline.ledger.postgres.statements import ledger_sql
from airflow_parallel_apply.pipeline.ledger.protocol import RunBounds
from airflow_parallel_apply.pipeline.model.interval import Interval
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session


class Runs:
    """One pipeline's rows in `run`. They are frozen one after the other, under the lock of the pipeline's row."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def bounds(self, run_id: str) -> RunBounds | None:
        with self._session.errors("read run"):
            return self._read(self._session.connection(), run_id)

    def freeze(self, run_id: str, until_offset: Offset, interval: Interval | None) -> RunBounds:
        with self._session.transaction("freeze run") as connection:
            if lock_pipeline(connection, self._session) is None:
                raise pipeline_removed()
            names = self._names(
                run_id=run_id,
                until_offset=until_offset,
                from_time=interval and interval.start,
                until_time=interval and interval.end,
            )
            connection.execute(ledger_sql("runs", "freeze"), names)
            return self._known(connection, run_id)

    def settle(self, run_id: str, until_seqno: int) -> RunBounds:
        with self._session.transaction("settle run") as connection:
            connection.execute(ledger_sql("runs", "settle"), self._names(run_id=run_id, until_seqno=until_seqno))
            return self._known(connection, run_id)

    def cuts(self, above_seqno: int) -> tuple[int, ...]:
        with self._session.errors("read runs"):
            rows = self._session.connection().execute(ledger_sql("runs", "cuts"), self._names(above_seqno=above_seqno))
            return tuple(row[0] for row in rows)

    def covered_time(self, seqno: int) -> datetime | None:
        with self._session.errors("read runs"):
            row = (
                self._session.connection()
                .execute(ledger_sql("runs", "covered_time"), self._names(seqno=seqno))
                .fetchone()
            )
            return None if row is None else row[0]

    def _read(self, connection: Connection, run_id: str) -> RunBounds | None:
        cursor = connection.cursor(row_factory=class_row(RunBounds))
        return cursor.execute(ledger_sql("runs", "read"), self._names(run_id=run_id)).fetchone()

    def _known(self, connection: Connection, run_id: str) -> RunBounds:
        found = self._read(connection, run_id)
        if found is None:
            raise ConfigurationError(f"run {run_id} was never opened", hint="Clear the run from its task open on.")
        return found

    def _names(self, **names: object) -> dict[str, object]:
        return {"pipeline": self._session.pipeline, **names}
