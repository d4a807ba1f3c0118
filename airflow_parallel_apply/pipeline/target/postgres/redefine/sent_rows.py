"""Rows that DDL which was sent writes to followed tables: the source sends its rows by themselves, so they would be
written twice. And those that a TRUNCATE takes away again, which comes by itself, too: before them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from airflow_parallel_apply.pipeline.errors import ConfigurationError, PlanError
from airflow_parallel_apply.pipeline.model.sent_ddl import shown_ddl
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.pipeline.target.steps import Statement
from airflow_parallel_apply.postgres.arrays import named

Name = tuple[str, str]
_NONE: Final = (0, 0, 0)


@contextmanager
def refusing_rows(connection: Connection, session: Session, step: Statement, names: Collection[Name]) -> Iterator[None]:
    """Around the statement, in its transaction. `names`: those of the followed tables. Errors: `PlanError` where it
    inserts, updates or deletes rows of a table that was there before, or empties one that got rows in this transaction;
    `ConfigurationError` where the server does not count them; psycopg's own.
    """
    is_counted, there = connection.execute(statement("sent_rows", "there")).fetchone() or (False, "")
    if not is_counted:
        raise ConfigurationError(
            "the source sends DDL, and rows that it may write here are not counted",
            op="ddl",
            hint="Set track_counts to on at the target, as it is by default.",
        )
    before = _written(connection)
    yield
    after = _written(connection)
    # A table that the statement makes holds no rows that come, but a partition of one that was there does. A TRUNCATE
    # makes the server forget what it has counted.
    parts = [oid for oid in {**before, **after} if before.get(oid, _NONE) != after.get(oid, _NONE)]
    written = _followed(connection, session, parts, names, {int(oid) for oid in there.split()}) if parts else []
    if written:
        raise PlanError(
            f"the source sent a statement that writes rows of {', '.join(written)}, which come by themselves: "
            f"{shown_ddl(step.text)}",
            op="ddl",
            pipeline=session.pipeline,
            table=written[0],
            hint="Send DDL alone. Do at the target by hand what the statement does there beside writing rows, if "
            f"anything; then {step.skipping}.",
        )


def _written(connection: Connection) -> dict[int, tuple[int, int, int]]:
    """The numbers of rows that this transaction has inserted, updated and deleted, by table."""
    found = connection.execute(statement("sent_rows", "written")).fetchall()
    return {oid: (inserted, updated, deleted) for oid, inserted, updated, deleted in found}


def _followed(
    connection: Connection, session: Session, parts: list[int], names: Collection[Name], there: Collection[int]
) -> list[str]:
    """The names of the followed tables, of those that were there, of which these are parts."""
    above = {oid for (oid,) in connection.execute(statement("sent_rows", "above"), {"oids": parts})}
    wanted = {"pipeline": session.pipeline, **named(names)}
    found = connection.execute(statement("side_writes", "tables"), wanted).fetchall()
    return [name for oid, name, _ in found if oid in above and oid in there]
