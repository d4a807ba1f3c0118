"""Rows that DDL which was sent writes to followed tables: the source sends its rows by themselves, so they would be
written twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from airflow_parallel_apply.pipeline.errors import PlanError
from airflow_parallel_apply.pipeline.model.sent_ddl import shown_ddl
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.steps import Statement

Name = tuple[str, str]


@contextmanager
def refusing_rows(
    connection: Connection, session: Session, statement: Statement, names: Collection[Name]
) -> Iterator[None]:
    """Around the statement, in its transaction. `names`: those of the followed tables. Errors: `PlanError` where it
    inserts, updates or deletes rows of a table that was there before; psycopg's own.
    """
    wanted = {
        "schemas": [schema for schema, _ in names],
        "tables": [table for _, table in names],
        "pipeline": session.pipeline,
    }
    found = connection.execute(session.sql("side_writes", "tables"), wanted).fetchall()
    before = _written(connection, session, [oid for oid, *_ in found])
    yield
    after = _written(connection, session, [*before])
    written = [name for oid, name, _ in found if oid in after and any(map(int.__gt__, after[oid], before[oid]))]
    if written:
        raise PlanError(
            f"the source sent a statement that writes rows of {', '.join(written)}, which come by themselves: "
            f"{shown_ddl(statement.text)}",
            op="ddl",
            pipeline=session.pipeline,
            table=written[0],
            hint="Send DDL alone. Do at the target by hand what the statement does there beside writing rows, if "
            f"anything; then {statement.skipping}.",
        )


def _written(connection: Connection, session: Session, oids: list[int]) -> dict[int, list[int]]:
    """The numbers of rows that this transaction has inserted, updated and deleted, by table."""
    found = connection.execute(session.sql("side_writes", "written"), {"oids": oids}).fetchall()
    return {oid: counts for oid, *counts, _, _ in found}
