"""One attempt at one part: COPY out of the source, byte for byte, into COPY at the target. Runs in a Spark task.

Two sessions, one transaction of the target that holds the rows and their mark. The text format, since it is the only
one that all versions of PostgreSQL read alike; both sessions print and read values under the same settings. Memory
holds about a megabyte, and one row where a row is larger.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.copy.postgres.record import CopyRecord, part_session
from airflow_parallel_apply.pipeline.copy.protocol import CopyOrder, CopyPart
from airflow_parallel_apply.pipeline.errors import FatalError, ParallelApplyError, TargetError, Unavailable
from airflow_parallel_apply.pipeline.model.origin import CommitOrigin
from airflow_parallel_apply.pipeline.source.postgres.catalog.own_rows import Name, oid_then, own_name
from airflow_parallel_apply.pipeline.source.postgres.session import Session as SourceSession
from airflow_parallel_apply.pipeline.target.postgres.catalog.held import require_held
from airflow_parallel_apply.pipeline.target.postgres.catalog.renamed_columns import RenamedColumns
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.pipeline.target.postgres.catalog.unfit import RenamedTable
from airflow_parallel_apply.pipeline.target.postgres.load.copying import open_copying
from airflow_parallel_apply.pipeline.target.postgres.positions.origin import CommitOrigins
from airflow_parallel_apply.pipeline.target.postgres.redefine.applied_tables import hold_applied
from airflow_parallel_apply.pipeline.target.postgres.replica_role import be_replica
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.results import failure_of

CHUNK_BYTES: Final = 64 * 2**10
"""Bytes sent to the target at once: few calls, and no more than the processor's cache takes."""
_MESSAGE_BYTES: Final = 2**20
_BEGINS_ANEW: Final = "Somebody altered the table while it was copied. Run again: the copy begins anew."
_LOCK_TIMEOUT: Final = "10s"
"""A session that waits for an exclusive lock at the source waits for the copy, and the next part would wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The totals of one COPY."""

    rows: int
    text_bytes: int


def load_part(source: Endpoint, target: Endpoint, order: CopyOrder, number: int) -> None:
    """Copy the part, unless that is done. Errors: as `Copier.copy`; `OwnershipLost` also when a twin took over."""
    twins = part_session(order.pipeline, order.copy_id, number)
    writing = Session(target.url, pipeline=order.pipeline, name=twins, synchronous_commit="off")
    reading = SourceSession(source, application_name=f"parallel_apply {order.pipeline} copy")
    record = CopyRecord(writing)
    origins = CommitOrigins(writing)
    part: CopyPart | None = None
    try:
        with writing.errors("copy"):
            part = record.part(order.copy_id, number)
            if part is None:
                return
            record.end_twins(order.copy_id, number)
        with origins.letting_go(), writing.transaction("copy", is_brief=False) as into:
            as_replica = be_replica(into)
            into.execute("SET LOCAL lc_monetary = 'C'")
            with reading.errors("copy"):
                if not see_snapshot(reading.catalog(), order.snapshot):
                    raise cut_off(order.pipeline)
                look_exactly(reading.catalog())
                oid = oid_then(reading.catalog(), part.table)
            table = _held(into, part, order)
            copying = open_copying(
                into, writing, table, as_replica=as_replica, followed=lambda: record.targets(order.copy_id)
            )
            copying.begin()
            with own_name(reading, oid, ".".join(part.table), op="copy") as name, copying.taking():
                sent = send(into, copying.command, chunks(reading, _copy_out(part, name, copying.columns)))
            copying.finish(sent.rows)
            require_held(into)
            into.execute(statement("session", "brief"))
            origins.mark_shared(into, number, CommitOrigin(offset=order.offset))
            if not record.mark(into, order.copy_id, number, rows=sent.rows, text_bytes=sent.text_bytes):
                raise psycopg.Rollback
    except ParallelApplyError as error:
        error.table = error.table or (".".join(part.table) if part is not None else None)
        if isinstance(error, FatalError):
            record.fail(order.copy_id, str(error))
        raise
    finally:
        reading.close()
        writing.close()


def _held(into: Connection, part: CopyPart, order: CopyOrder) -> TargetTable:
    """The part's table, as it was when the parts were cut: somebody may have altered it since. Errors: `TargetError`
    where what has its name, or those of its columns, has not the rows of other parts; psycopg's own.
    """
    try:
        (table,) = hold_applied(into, [part.relation], pipeline=order.pipeline)
    except (RenamedTable, RenamedColumns) as error:
        raise TargetError(error.message, table=error.table, column=error.column, hint=_BEGINS_ANEW) from error
    if table.lost_columns:
        names = ", ".join(table.lost_columns)
        raise TargetError(f"columns were made anew at the target during the copy: {names}", hint=_BEGINS_ANEW)
    return table


def see_snapshot(connection: psycopg.Connection[Any], snapshot: str) -> bool:
    """Begin a transaction that reads what the slot's snapshot shows. False when the source forgot it, as it does when
    the session that exported it ends. Errors: psycopg's own.
    """
    connection.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    try:
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
    except (psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue):
        return False
    return True


def cut_off(pipeline: str) -> Unavailable:
    """The error for a snapshot that the source has forgotten: no part can be copied any more."""
    return Unavailable(
        "the copy was cut off: the source no longer knows its snapshot",
        op="copy",
        pipeline=pipeline,
        hint="The next try begins anew by itself.",
    )


def look_exactly(connection: psycopg.Connection[Any]) -> None:
    """For the transaction: every row, or an error. Errors: psycopg's own."""
    # A policy that hides rows is an error, not a smaller copy.
    connection.execute("SET LOCAL row_security = off")
    connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(_LOCK_TIMEOUT)))


def chunks(reading: SourceSession, query: sql.Composed) -> Iterator[tuple[int, bytes | memoryview]]:
    """COPY text of whole rows, about `CHUNK_BYTES` at a time, and how many rows it is.

    As close to libpq as Python comes: a million rows pass here in a third of a second.
    """
    rows: list[bytes | memoryview] = []
    held = 0
    with reading.errors("copy"):
        connection = reading.catalog()
        link = connection.pgconn
        _begin(connection, query, ExecStatus.COPY_OUT)
        while (found := link.get_copy_data(0))[0] >= 0:
            rows.append(found[1])
            held += found[0]
            if held >= CHUNK_BYTES:
                yield len(rows), rows[0] if len(rows) == 1 else b"".join(rows)
                rows.clear()
                held = 0
        _end(connection)
    if rows:
        yield len(rows), b"".join(rows)


def send(connection: Connection, command: sql.Composed, pieces: Iterator[tuple[int, bytes | memoryview]]) -> Sent:
    """All of the pieces into one COPY. Errors: psycopg's own, and those of the pieces."""
    row_count = byte_count = 0
    link = connection.pgconn
    _begin(connection, command, ExecStatus.COPY_IN)
    try:
        for rows, text in pieces:
            row_count += rows
            byte_count += len(text)
            if len(text) <= _MESSAGE_BYTES:
                link.put_copy_data(text)
                continue
            # libpq keeps a whole message in memory, and a row may have a gigabyte.
            whole = memoryview(text)
            for first in range(0, len(whole), _MESSAGE_BYTES):
                link.put_copy_data(whole[first : first + _MESSAGE_BYTES])
    except psycopg.Error:
        # The target's own reason comes with the end.
        _abandon(connection)
        raise
    except BaseException:
        with suppress(psycopg.Error):
            _abandon(connection)
        raise
    link.put_copy_end()
    _end(connection)
    return Sent(rows=row_count, text_bytes=byte_count)


def _begin(connection: psycopg.Connection[Any], query: sql.Composed, status: ExecStatus) -> None:
    """Let calls of libpq wait from here on; until `_end` the connection is used for them alone."""
    link = connection.pgconn
    link.nonblocking = 0
    result = link.exec_(query.as_bytes(connection))
    if result.status != status:
        raise failure_of(result)


def _end(connection: psycopg.Connection[Any]) -> None:
    """Hear how the COPY ended."""
    failed: PGresult | None = None
    while (result := connection.pgconn.get_result()) is not None:
        if result.status == ExecStatus.FATAL_ERROR:
            failed = result
    connection.pgconn.nonblocking = 1
    if failed is not None:
        raise failure_of(failed)


def _abandon(connection: psycopg.Connection[Any]) -> None:
    """Leave COPY FROM, so that the connection can roll back. Errors: the server's, where it had refused the data."""
    connection.pgconn.put_copy_end(b"abandoned")
    try:
        _end(connection)
    except psycopg.errors.QueryCanceled:
        return


def _copy_out(part: CopyPart, name: Name, columns: sql.Composed) -> sql.Composed:
    """`name`: that of the part's table now. ONLY: what inherits from a table is a table of its own."""
    rows = sql.SQL("ONLY {}").format(sql.Identifier(*name))
    if part.first_block is not None:
        rows = sql.SQL("{} WHERE ctid >= {}").format(rows, sql.Literal(f"({part.first_block},0)"))
        if part.end_block is not None:
            rows = sql.SQL("{} AND ctid < {}").format(rows, sql.Literal(f"({part.end_block},0)"))
    return sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(columns, rows)
