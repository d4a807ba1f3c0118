"""The record of a copy in the target: which one is under way, what it made, its parts and their marks.

One row for each pipeline. A copy that begins anew writes its id there first: from then on no mark of the former one is
accepted. Then the former one's sessions are ended, and only then what it left is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.copy.protocol import NO_GENERATION, CopyPart
from airflow_parallel_apply.pipeline.errors import LeaseBusy, OwnershipLost, TargetError
from airflow_parallel_apply.pipeline.model.copy_progress import CopyProgress
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.rights import current_role
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.wording import wording
from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA, claim_tag, pipeline_tag
from airflow_parallel_apply.pipeline.target.postgres.replica_role import be_replica, replica_grant
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement

_CHANNEL: Final = "copy"
"""Stands for the channel in the names of a copy's sessions."""
_END_TIMEOUT: Final = timedelta(seconds=5)
TEXT_PER_BYTE: Final = 0.8
"""COPY text for a byte on disk, before anything was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """A table of the target, by its name of now."""

    schema: str
    table: str
    is_partitioned: bool

    @property
    def rows(self) -> sql.Composable:
        """The table's own rows, not those of tables that inherit from it; of a partitioned one, its partitions'."""
        name = sql.Identifier(self.schema, self.table)
        return name if self.is_partitioned else sql.SQL("ONLY {}").format(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyState:
    """The pipeline's last copy. `made`: the oids of the tables that it made, as long as the stream has not begun."""

    copy_id: str
    log_id: str
    is_finished: bool
    made: tuple[int, ...]


def copy_sessions(pipeline: str, copy_id: str) -> str:
    """The prefix of the names of a copy's sessions at the target; `Session.end_holders` knows their form."""
    return f"pa:{pipeline_tag(pipeline)}:{_CHANNEL}:{claim_tag(copy_id)}"


def part_session(pipeline: str, copy_id: str, part: int) -> str:
    """`application_name` of every session that copies this part."""
    return f"{copy_sessions(pipeline, copy_id)}:{part}"


class CopyRecord:
    """Through a session of the target; its methods raise the pipeline's errors."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def state(self) -> CopyState | None:
        """None when this pipeline never began to copy."""
        with self._session.errors("copy"):
            if self._run("is_there", schema=SCHEMA).fetchone() != (True,):
                return None
            return self._state(self._session.connection(), "read")

    def hold(self) -> None:
        """Be the only one who copies for this pipeline, as long as the session lives. `LeaseBusy`: another one is."""
        with self._session.errors("copy"):
            if self._run("hold").fetchone() != (True,):
                raise LeaseBusy(
                    f"another run of pipeline {self._session.pipeline} is copying",
                    hint="See parallel-apply status; a copy that was cut off lets go by itself.",
                    generation=NO_GENERATION,
                )

    def is_held(self) -> bool:
        """True if somebody copies for this pipeline now; needs nothing of ours to be there."""
        with self._session.errors("copy"):
            return self._run("is_held").fetchone() == (True,)

    def begin(self, copy_id: str, log_id: str) -> None:
        """Make this the pipeline's copy from here on, and end the sessions of any other."""
        with self._session.errors("copy"):
            # Before, since one of them may hold the record's row; and after, since one may have come in between.
            self._end_others(copy_id)
            with self._session.transaction("copy"):
                self._run("forget_registered")
                self._run("begin", copy_id=copy_id, log_id=log_id)
            self._end_others(copy_id)

    def end_sessions(self) -> None:
        """End whatever copies for this pipeline; the caller holds it."""
        with self._session.errors("copy"):
            self._end_others("")

    def clear(self, connection: Connection, copy_id: str | None) -> tuple[str, ...]:
        """Remove, in the caller's transaction, all that former copies left; says what that was. `copy_id`: the one for
        which it is done (None: to see what comes of it, and roll back). Errors: psycopg's own, too.
        """
        state = self._state(connection, "lock") if copy_id is None else self._locked(connection, copy_id)
        undone: list[str] = []
        made = self._there(state.made if state is not None else ())
        if made:
            names = [sql.Identifier(table.schema, table.table) for table in made.values()]
            connection.execute(sql.SQL("DROP TABLE {}").format(sql.SQL(", ").join(names)))
            undone.append(f"dropped what a copy that was cut off had made: {_named(made.values())}")
        filled = self._there(oid for (oid,) in self._run("filled") if oid not in made)
        if filled:
            empty_tables(connection, [table.rows for table in filled.values()])
            undone.append(f"emptied what a copy that was cut off had filled: {_named(filled.values())}")
        self._run("forget_parts")
        self._run("set_made", copy_id=copy_id, made=[])
        return tuple(undone)

    def set_made(self, copy_id: str, oids: Sequence[int]) -> None:
        """In the transaction in which these tables came into being."""
        self._run("set_made", copy_id=copy_id, made=list(oids))

    def add_parts(self, copy_id: str, parts: Sequence[CopyPart]) -> None:
        """Number them from 0."""
        rows = [
            {
                "copy_id": copy_id,
                "part": number,
                "pipeline": self._session.pipeline,
                "target_oid": part.target_oid,
                "task": Jsonb(part.to_json()),
                "weight": part.weight,
            }
            for number, part in enumerate(parts)
        ]
        with self._session.transaction("copy") as connection:
            self._locked(connection, copy_id)
            connection.cursor().executemany(self._sql("add_part"), rows)

    def missing(self, copy_id: str) -> tuple[int, ...]:
        """Parts without a mark."""
        with self._session.errors("copy"):
            return tuple(part for (part,) in self._run("missing", copy_id=copy_id))

    def part(self, copy_id: str, number: int) -> CopyPart | None:
        """The part to copy; None if it is copied already. Errors: `OwnershipLost` when this copy is over."""
        found = list(self._run("part", copy_id=copy_id, part=number))
        if not found:
            raise OwnershipLost("another copy began, or this one failed", op="copy")
        task, is_done = found[0]
        return None if is_done else CopyPart.from_json(task)

    def targets(self, copy_id: str) -> frozenset[tuple[str, str]]:
        """Schema and name of each table that gets rows. Errors: psycopg's own."""
        return frozenset((schema, table) for schema, table in self._run("targets", copy_id=copy_id))

    def mark(self, connection: Connection, copy_id: str, number: int, *, rows: int, text_bytes: int) -> bool:
        """In the transaction of the part's rows, last. False: a twin was faster, or this copy is over."""
        values = {"copy_id": copy_id, "part": number, "rows": rows, "bytes": text_bytes}
        return connection.execute(self._sql("mark"), values).rowcount == 1

    def end_twins(self, copy_id: str, number: int) -> None:
        """End other sessions that copy this part: one that stands still would hold it up."""
        wait_ms = int(_END_TIMEOUT.total_seconds() * 1000)
        name = part_session(self._session.pipeline, copy_id, number)
        self._run("end_twins", name=name, wait_ms=wait_ms)

    def fail(self, copy_id: str, failure: str) -> None:
        """So that what of this copy has not begun yet does not begin any more."""
        with self._session.errors("copy"):
            self._run("fail", copy_id=copy_id, failure=failure)

    def loaded(self, copy_id: str) -> bool:
        """Note that all parts bear their marks. False when one lacks it."""
        with self._session.errors("copy"):
            return self._run("loaded", copy_id=copy_id).rowcount == 1

    def finish(self, copy_id: str) -> None:
        """Everything is there. Errors: `OwnershipLost` when another copy began."""
        with self._session.errors("copy"):
            if self._run("finish", copy_id=copy_id).rowcount != 1:
                raise OwnershipLost("another copy began", op="copy", pipeline=self._session.pipeline)

    def register(self) -> None:
        """The stream begins: from here on the rows are the pipeline's, and no copy's to remove."""
        with self._session.errors("copy"):
            self._run("register")

    def progress(self) -> CopyProgress | None:
        """The progress of the pipeline's last copy; None if there was none."""
        state = self.state()
        if state is None:
            return None
        with self._session.errors("copy"):
            row = self._run("progress", sessions=copy_sessions(self._session.pipeline, state.copy_id)).fetchone()
        return None if row is None else _progress(*row[1:])

    def _locked(self, connection: Connection, copy_id: str) -> CopyState:
        state = self._state(connection, "lock")
        if state is None or state.copy_id != copy_id:
            raise OwnershipLost("another copy began", op="copy", pipeline=self._session.pipeline)
        return state

    def _state(self, connection: Connection, name: str) -> CopyState | None:
        row = connection.execute(self._sql(name), {"pipeline": self._session.pipeline}).fetchone()
        if row is None:
            return None
        copy_id, log_id, is_finished, made = row
        return CopyState(copy_id=copy_id, log_id=log_id, is_finished=is_finished, made=tuple(made))

    def _there(self, oids: Iterable[int]) -> dict[int, _Table]:
        """Those that are still tables."""
        return {
            oid: _Table(schema=schema, table=table, is_partitioned=is_partitioned)
            for oid, schema, table, is_partitioned in self._run("still_there", oids=list(oids))
        }

    def _end_others(self, copy_id: str) -> None:
        self._session.end_holders([_CHANNEL], but_token=claim_tag(copy_id))

    def _run(self, statement_name: str, /, **values: Any) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._session.connection().execute(
            self._sql(statement_name), {"pipeline": self._session.pipeline, **values}
        )

    def _sql(self, name: str) -> sql.Composed:
        return statement("record", name, package=__package__)


def empty_tables(connection: Connection, tables: Sequence[sql.Composable]) -> None:
    """Remove all rows, in the caller's transaction; each table as TRUNCATE names it. Errors: `TargetError` where
    foreign keys would act on what refers to them; psycopg's own.
    """
    if not tables:
        return
    try:
        with connection.transaction():
            connection.execute(sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(tables)))
    except psycopg.errors.FeatureNotSupported as error:
        # Tables that refer to these, though they have no rows, forbid it.
        if not be_replica(connection):
            raise TargetError(
                f"the tables cannot be emptied: {wording(error)[0]}",
                hint=f"Run {replica_grant(current_role(connection))} at the target, as a superuser; or drop the "
                "foreign key until the copy is there. Then copy again.",
            ) from error
        for table in tables:
            connection.execute(sql.SQL("DELETE FROM {}").format(table))


def read_progress(target: Endpoint, pipeline: str) -> CopyProgress | None:
    """The progress of the pipeline's last copy; None if there was no copy, or there is no pipeline. Errors: the
    pipeline's.
    """
    with closing(Session(target.url, pipeline=pipeline)) as session:
        return CopyRecord(session).progress()


def is_copying(target: Endpoint, pipeline: str) -> bool:
    """True if a live session copies for the pipeline. Errors: the pipeline's."""
    with closing(Session(target.url, pipeline=pipeline)) as session:
        return CopyRecord(session).is_held()


def _progress(
    is_loaded: bool,
    is_finished: bool,
    failure: str | None,
    seconds: float,
    parts: int,
    parts_done: int,
    rows: int,
    text_bytes: int,
    weight: int,
    weight_done: int,
    running_bytes: int,
) -> CopyProgress:
    done_bytes = text_bytes - running_bytes
    text_per_byte = done_bytes / weight_done if done_bytes and weight_done else TEXT_PER_BYTE
    reached = min(weight_done + running_bytes / text_per_byte, weight)
    fraction = reached / weight if weight else float(parts_done == parts)
    phase = "finished" if is_finished else "failed" if failure else "making indexes" if is_loaded else "copying"
    return CopyProgress(
        phase=phase,
        parts=parts,
        parts_done=parts_done,
        rows=rows,
        bytes=text_bytes,
        seconds=seconds,
        fraction=1.0 if is_loaded else fraction,
        seconds_left=seconds * (1 - fraction) / fraction if fraction and phase == "copying" else None,
        failure=failure,
    )


def _named(tables: Iterable[_Table]) -> str:
    return ", ".join(f"{table.schema}.{table.table}" for table in tables)
