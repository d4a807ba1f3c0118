"""A merge that changed another number of rows than were staged: `MissingRows`, and what a person is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg import sql

from airflow_parallel_apply.pipeline.errors import LogError, ParallelApplyError, StagingLost, TargetError
from airflow_parallel_apply.pipeline.target.postgres.catalog.unfit import rows_differ
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.guards import DELETE, INSERT, UPDATE, turned_away
from airflow_parallel_apply.pipeline.target.postgres.merge.parts import Part, same_key
from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA
from airflow_parallel_apply.pipeline.target.postgres.replica_role import may_be_replica
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.staging.staged_columns import operation_column

_SHOWN_KEYS: Final = 3
_EVENTS: Final = {"I": INSERT, "U": UPDATE, "D": DELETE}


class MissingRows(Exception):
    """A merge changed another number of rows than were staged. Stays in this room: see `explain_missing`."""

    def __init__(self, part: Part, operation: str, expected: int, found: int) -> None:
        super().__init__(part.table.relation.name)
        self.part = part
        self.operation = operation
        self.expected = expected
        self.found = found


def explain_missing(session: Session, found: MissingRows) -> ParallelApplyError:
    """Look, after the roll-back, which staged keys have no row. Errors: psycopg's own."""
    part = found.part
    connection = session.connection()
    staging, operation = sql.Identifier(SCHEMA, part.staged.staging), operation_column(part.table.relation)
    counted = connection.execute(
        sql.SQL("SELECT count(*) FROM {} WHERE {} = %s").format(staging, operation), [found.operation]
    ).fetchone()
    if counted is None or counted[0] != found.expected:
        return StagingLost(
            f"staging table {part.staged.staging} lost rows, as a crash of the target does",
            hint="The unit is staged again.",
        )

    def refused() -> TargetError:
        return turned_away(
            connection,
            part.table,
            _EVENTS[found.operation],
            expected=found.expected,
            found=found.found,
            as_replica=may_be_replica(connection),
        )

    if found.operation == "I":
        return refused()
    keys = part.table.relation.key_names
    names = sql.SQL(", ").join(sql.SQL("s.{}::text").format(sql.Identifier(name)) for name in keys)
    missing = connection.execute(
        sql.SQL(
            "SELECT {names} FROM {staging} AS s WHERE s.{operation} = {wanted}"
            " AND NOT EXISTS (SELECT FROM {target} AS t WHERE {same}) LIMIT {limit}"
        ).format(
            names=names,
            staging=staging,
            operation=operation,
            target=part.table.own_rows,
            same=same_key(part.table),
            limit=_SHOWN_KEYS,
            wanted=sql.Literal(found.operation),
        )
    ).fetchall()
    verb = _EVENTS[found.operation]
    if not missing:
        twice = _staged_twice(connection, found, keys)
        if twice is not None:
            return twice
    if not missing and found.found < found.expected:
        return refused()
    if not missing:
        return TargetError(
            f"{found.found} rows were changed for {found.expected} keys to {verb}: a key is not unique",
            table=part.table.relation.name,
            hint="Check the target's unique index over the key, and the log.",
        )
    shown = "; ".join(key_text(keys, row) for row in missing)
    return TargetError(
        f"{found.expected - found.found} rows to {verb} are not in the target, first: {shown}",
        table=part.table.relation.name,
        hint=rows_differ(part.table),
    )


def key_text(names: Sequence[str], values: Sequence[object]) -> str:
    """A key for people."""
    return ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))


def _staged_twice(connection: Connection, found: MissingRows, keys: Sequence[str]) -> ParallelApplyError | None:
    """Find changes of one key that came apart on their way here, so that each part became a net change of its own."""
    row = connection.execute(
        sql.SQL("SELECT {texts} FROM {staging} GROUP BY {names} HAVING count(*) > 1 LIMIT 1").format(
            texts=sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in keys),
            names=sql.SQL(", ").join(sql.Identifier(name) for name in keys),
            staging=sql.Identifier(SCHEMA, found.part.staged.staging),
        )
    ).fetchone()
    if row is None:
        return None
    return LogError(
        f"changes of one key were not adjacent when they were staged: {key_text(keys, row)}",
        table=found.part.table.relation.name,
        hint="The order of the log's rows is at fault; report it. With channels=1 the unit is replayed instead.",
    )
