"""The lease: who owns a pipeline, under which generation; and how it is routed.

The owner's generation alone keeps nobody from committing: `Target.own` writes it into all positions, so that the
conditional move at the end of each commit fails for a former owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from airflow_parallel_apply.pipeline.errors import ConfigurationError, LeaseBusy, OwnershipLost
from airflow_parallel_apply.pipeline.ledger.postgres.recopied import require_no_recopy
from airflow_parallel_apply.pipeline.ledger.postgres.statements import ledger_sql
from airflow_parallel_apply.pipeline.ledger.protocol import LeaseRequest, PipelineState, RoutedPositions, RoutingChange
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA
from airflow_parallel_apply.pipeline.target.postgres.positions.positions import generation_lost
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement


class Lease:
    """One pipeline's row in `pipeline`. Leases are measured by the ledger's clock."""

    def __init__(self, session: Session, target: Callable[[], str] | None) -> None:
        """`target`: names the database of a target elsewhere, which it asks once; None: it is this one."""
        self._session = session
        self._target = target

    def state(self) -> PipelineState | None:
        with self._session.errors("read pipeline"):
            try:
                return self._found(self._session.connection())
            except psycopg.errors.UndefinedTable:
                return None

    def acquire(self, request: LeaseRequest) -> PipelineState:
        with self._locked("acquire", request.log_id, is_known=request.is_known) as (connection, row):
            require_no_recopy(connection, self._session, row["generation"])
            if row["is_owned"] and row["owner"] != request.owner:
                raise LeaseBusy(
                    f"run {row['owner']} owns the pipeline until {row['lease_until']:%H:%M:%S} UTC",
                    hint="Wait for it, or stop it.",
                    generation=row["generation"],
                )
            names = self._names(
                owner=request.owner,
                lease=request.lease,
                queue=request.queue,
                generation=max(row["generation"], request.above) + 1,
            )
            connection.execute(self._sql("acquire"), names)
            return self._read(connection)

    def renew(self, generation: int, lease: timedelta) -> None:
        with self._session.transaction("renew lease") as connection:
            names = self._names(generation=generation, lease=lease)
            self._require_one(connection.execute(self._sql("renew"), names), generation)

    def release(self, generation: int, clean_stop_seqno: int | None) -> None:
        with self._session.transaction("release lease") as connection:
            names = self._names(generation=generation, clean_stop_seqno=clean_stop_seqno)
            self._require_one(connection.execute(self._sql("release"), names), generation)

    def routing(self) -> Routing:
        with self._session.errors("read routing"):
            row = self._session.connection().execute(self._sql("routing"), self._names()).fetchone()
        if row is None or not row[1]:
            raise ConfigurationError(
                f"pipeline {self._session.pipeline} was never routed", hint="Run it from its task capture on."
            )
        routing, channels = row
        # What an earlier release routed says no more than this.
        return Routing(channels=channels) if routing is None else Routing.from_json(routing)

    def route(self, change: RoutingChange, positions: RoutedPositions) -> None:
        routing, generation = change.routing, change.generation
        with self._locked("route", change.log_id, is_known=change.is_known) as (connection, row):
            if self._target is not None:
                connection.execute(statement("session", "patient"))
            if row["routing_digest"] == routing.digest and positions.routing_digest() == routing.digest:
                return
            require_owner(row, generation, so="its routing cannot change now")
            if generation is None:
                # No copy gets past a run that owns the pipeline.
                require_no_recopy(connection, self._session, row["generation"])
            # Lanes of a run that is over may have slept through its end: what they planned by is not valid any more.
            # Those of the caller's own generation start later than this.
            raised = row["generation"] + (generation is None and bool(row["routing_digest"]))
            seqno = positions.lay_out(log_id=change.log_id, routing=routing, generation=raised)
            names = self._names(
                routing_digest=routing.digest,
                routing=Jsonb(routing.to_json()),
                channels=routing.channels,
                seqno=seqno,
                generation=raised,
            )
            connection.execute(ledger_sql("plan", "drop_above"), names)
            connection.execute(self._sql("set_routing"), names)

    @contextmanager
    def _locked(self, op: str, log_id: str, *, is_known: bool) -> Iterator[tuple[Connection, Mapping[str, Any]]]:
        # A target elsewhere may be slow to say its name: nobody waits for that under a lock, and it says it once.
        self._target_name()
        with self._session.transaction(op) as connection:
            yield connection, self._lock(connection, log_id, is_known=is_known)

    def _lock(self, connection: Connection, log_id: str, *, is_known: bool) -> Mapping[str, Any]:
        if not is_known:
            connection.execute(self._sql("register"), self._names(log_id=log_id, target=self._target_name()))
        row = lock_pipeline(connection, self._session)
        if row is None:
            raise pipeline_removed()
        self._require_ours(row["ledger"], row["target"])
        if row["log_id"] != log_id:
            raise ConfigurationError(
                f"the target has applied log {row['log_id']} so far, this is log {log_id}",
                hint="Use the pipeline's own log_url, or another pipeline name for another log.",
            )
        return row

    def _found(self, connection: Connection) -> PipelineState | None:
        cursor = connection.cursor(row_factory=dict_row)
        row = cursor.execute(self._sql("read"), self._names()).fetchone()
        if row is None:
            return None
        self._require_ours(row.pop("ledger"), row.pop("target"))
        return PipelineState(**row)

    def _target_name(self) -> str:
        return "" if self._target is None else self._target()

    def _require_ours(self, ledger: str, target: str) -> None:
        """Errors: `ConfigurationError` where the row is that of positions whose ledger is elsewhere, or of another
        target.
        """
        pipeline = self._session.pipeline
        if ledger:
            raise ConfigurationError(
                f"the ledger of pipeline {pipeline} is in database {ledger}, not in the target's own",
                hint="Name it: ledger_conn_id, --ledger.",
            )
        if target != self._target_name():
            known = f"database {target}" if target else "the ledger's own database"
            raise ConfigurationError(
                f"the ledger has a pipeline {pipeline} already, into {known}",
                hint="Give one of the two another name. After a target was moved with all its rows: UPDATE "
                f"{SCHEMA}.pipeline SET target = '{self._target_name()}' WHERE pipeline = '{pipeline}' "
                "at the ledger.",
            )

    def _read(self, connection: Connection) -> PipelineState:
        found = self._found(connection)
        if found is None:
            raise pipeline_removed()
        return found

    def _require_one(self, cursor: psycopg.Cursor[tuple[Any, ...]], generation: int) -> None:
        if cursor.rowcount != 1:
            raise generation_lost(generation)

    def _sql(self, name: str) -> sql.Composed:
        return ledger_sql("lease", name)

    def _names(self, **names: object) -> dict[str, object]:
        return {"pipeline": self._session.pipeline, **names}


def lock_pipeline(connection: Connection, session: Session) -> Mapping[str, Any] | None:
    """The pipeline's row, kept until the transaction's end; None where there is none. Errors: psycopg's own."""
    cursor = connection.cursor(row_factory=dict_row)
    return cursor.execute(ledger_sql("lease", "lock"), {"pipeline": session.pipeline}).fetchone()


def pipeline_removed() -> OwnershipLost:
    """The error of whoever goes on with a pipeline that somebody has dropped meanwhile."""
    return OwnershipLost(
        "the pipeline was removed",
        hint="To begin anew, clear the run's task capture with everything downstream of it. A command has nothing left "
        "to do.",
    )


def require_owner(row: Mapping[str, Any], generation: int | None, *, so: str) -> None:
    """Refuse whoever may not change what the owner of a pipeline's row relies on; the row is locked.

    `generation` None: the caller owns nothing. A lease that is over does not end an ownership: lanes go on until the
    next `acquire` ends them. Errors: `LeaseBusy`, `so`: what follows from that; `OwnershipLost`.
    """
    if generation is None and row["owner"] is not None:
        raise LeaseBusy(f"run {row['owner']} owns the pipeline, {so}", hint="Wait for it, or open the next run.")
    if generation is not None and row["generation"] != generation:
        raise generation_lost(generation)
