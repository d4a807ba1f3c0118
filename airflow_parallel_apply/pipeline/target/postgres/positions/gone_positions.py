"""Positions that somebody has removed: nothing says any more what their channels have applied, unless all had stopped
at one seqno.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from psycopg import sql

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.target.lost_positions import positions_lost
from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.arrays import named
from airflow_parallel_apply.postgres.filled import filled


def positions_gone(connection: Connection, session: Session, channels: Sequence[int]) -> TargetError:
    """The error of channels without a position. Errors: psycopg's own."""
    names = ", ".join(map(str, channels))
    error = positions_lost(f"{SCHEMA}.position of channels {names}", pipeline=session.pipeline)
    found = connection.execute(statement("positions", "last_stop"), {"pipeline": session.pipeline}).fetchone()
    generation, seqno = found or (0, None)
    if seqno is not None:
        error.hint = (
            f"All channels had stopped at seqno {seqno}: if the tables are as they were then, run "
            f"{_inserting(session, channels, seqno, generation)} at the target; then run again. {error.hint}"
        )
    return error


def require_no_rows(session: Session, names: Collection[tuple[str, str]]) -> None:
    """For a pipeline that its ledger elsewhere knows, and this database does not. `names`: those of its tables. Errors:
    `TargetError` where one has rows.
    """
    with session.transaction("route") as connection:
        there = connection.execute(statement("positions", "there"), named(names)).fetchall()
        tables = [sql.Identifier(schema, table) for schema, table in there]
        for (schema, table), has_rows in zip(there, filled(connection, tables), strict=True):
            if has_rows:
                raise positions_lost(f"{SCHEMA}.position", f"{schema}.{table}", pipeline=session.pipeline)


def _inserting(session: Session, channels: Sequence[int], seqno: int, generation: int) -> str:
    rows = sql.SQL(", ").join(
        sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, (session.pipeline, channel, seqno, generation))))
        for channel in channels
    )
    table = sql.Identifier(SCHEMA, "position")
    return sql.SQL("INSERT INTO {} (pipeline, channel, seqno, generation) VALUES {}").format(table, rows).as_string()
