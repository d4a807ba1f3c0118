"""Tables that were copied anew, as the target records them.

The record commits with the rows. A log that passes over changes in favour of a copy names that copy; a target that does
not know the copy has lost it, by a crash or because an older state of the target was restored.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.rows import class_row

from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA
from airflow_parallel_apply.pipeline.target.postgres.positions.positions import generation_lost
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.pipeline.target.protocol import Recopied


def require_generation(connection: Connection, session: Session, generation: int) -> None:
    """And keep it until the transaction's end. `OwnershipLost`; psycopg's own."""
    found = connection.execute(statement("recopied", "own"), {"pipeline": session.pipeline})
    if found.fetchone() != (generation,):
        raise generation_lost(generation)


def write_recopied(connection: Connection, session: Session, tables: Sequence[Recopied]) -> None:
    """In the transaction of the rows, which has its generation. Errors: psycopg's own."""
    for table in tables:
        connection.execute(
            statement("recopied", "write"),
            {
                "pipeline": session.pipeline,
                "schema_name": table.schema,
                "table_name": table.table,
                "recopy_id": table.recopy_id,
                "copied_offset": table.offset,
                "rows": table.rows,
            },
        )


def read_recopied(session: Session) -> tuple[Recopied, ...]:
    """See `Target.recopied`."""
    with session.errors("read recopied"):
        connection = session.connection()
        is_there = connection.execute(statement("recopied", "is_there"), {"schema": SCHEMA}).fetchone()
        if is_there != (True,):
            return ()
        cursor = connection.cursor(row_factory=class_row(Recopied))
        return tuple(cursor.execute(statement("recopied", "read"), {"pipeline": session.pipeline}))
