"""Tables that were copied anew, as the target records them, and the lock that keeps runs out meanwhile.

The record commits with the rows. A log that passes over changes in favour of a copy names that copy; a target that does
not know it has lost it, be it by a crash or because an older state of it was restored.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from psycopg.rows import class_row

from airflow_parallel_apply.pipeline.errors import FenceBusy
from airflow_parallel_apply.pipeline.position import low_watermark
from airflow_parallel_apply.pipeline.target.postgres.positions import generation_lost, read_positions
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.protocol import Recopied


def hold_recopy(session: Session) -> None:
    """Keep runs from opening, and others from copying anew, as long as the session lives. `FenceBusy`."""
    with session.errors("recopy"):
        found = session.connection().execute(session.sql("recopied", "hold"), {"pipeline": session.pipeline})
        if found.fetchone() != (True,):
            raise _busy(session, None)


def require_no_recopy(connection: Connection, session: Session, generation: int) -> None:
    """In the transaction that takes the pipeline. `FenceBusy`; psycopg's own."""
    found = connection.execute(session.sql("recopied", "is_free"), {"pipeline": session.pipeline})
    if found.fetchone() != (True,):
        raise _busy(session, generation)


def require_generation(connection: Connection, session: Session, generation: int) -> None:
    """And keep it until the transaction's end. `OwnershipLost`; psycopg's own."""
    found = connection.execute(session.sql("recopied", "own"), {"pipeline": session.pipeline})
    if found.fetchone() != (generation,):
        raise generation_lost(generation)


def knows_recopied(connection: Connection, session: Session, known: Set[str]) -> bool:
    """Whether these are all the copies that the target holds. Errors: psycopg's own."""
    names = {"pipeline": session.pipeline, "known": sorted(known)}
    return connection.execute(session.sql("recopied", "unknown"), names).fetchone() == (False,)


def write_recopied(connection: Connection, session: Session, tables: Sequence[Recopied]) -> None:
    """In the transaction of the rows, which has its generation. What is planned and not applied is planned anew: it
    counts rows that are passed over. Errors: psycopg's own.
    """
    applied_seqno = low_watermark(read_positions(connection, session))
    connection.execute(session.sql("fence", "drop_plan"), {"pipeline": session.pipeline, "seqno": applied_seqno})
    for table in tables:
        connection.execute(
            session.sql("recopied", "write"),
            {
                "pipeline": session.pipeline,
                "schema_name": table.schema,
                "table_name": table.table,
                "recopy_id": table.recopy_id,
                "lsn": table.lsn,
                "rows": table.rows,
            },
        )


def read_recopied(session: Session) -> tuple[Recopied, ...]:
    """See `Target.recopied`."""
    with session.errors("read recopied"):
        connection = session.connection()
        is_there = connection.execute(session.sql("recopied", "is_there"), {"schema": session.schema}).fetchone()
        if is_there != (True,):
            return ()
        cursor = connection.cursor(row_factory=class_row(Recopied))
        return tuple(cursor.execute(session.sql("recopied", "read"), {"pipeline": session.pipeline}))


def _busy(session: Session, generation: int | None) -> FenceBusy:
    return FenceBusy(
        f"tables of pipeline {session.pipeline} are being copied anew",
        hint="Wait for parallel-apply recopy to end.",
        generation=generation,
    )
