"""Removing a pipeline from its target: positions, staging; with the last pipeline the schema itself."""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.model.finding import Side
from airflow_parallel_apply.pipeline.model.removal import Leftover, Removal
from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA
from airflow_parallel_apply.pipeline.target.postgres.positions.branches import forget_branches, remove_branches
from airflow_parallel_apply.pipeline.target.postgres.positions.origin import drop_origins, drop_origins_command
from airflow_parallel_apply.pipeline.target.postgres.schema import is_installed
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.staging.staging import drop_foreign_staging
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.quoting import quoted

_BY_HAND: Final = ("pipeline", "applied_table", "copy")
"""The tables whose rows nothing else deletes."""


def drop_commands(pipeline: str) -> tuple[str, ...]:
    """The commands that a person runs at a target that we cannot reach."""
    name, prefix = sql.Literal(pipeline).as_string(), sql.Literal(f"{pipeline}/").as_string()
    return (
        *(f"DELETE FROM {quoted(SCHEMA, table)} WHERE pipeline = {name}" for table in _BY_HAND),
        f"DELETE FROM {quoted(SCHEMA, 'task')} WHERE starts_with(queue, {prefix})",
        drop_origins_command(pipeline),
    )


def drop_target(session: Session, *, force: bool) -> Removal:
    """See `Target.drop`."""
    if not is_installed(session):
        return Removal()
    with session.errors("drop"):
        if force:
            session.end_holders(None, but_token="")
        remove_branches(session)
    with session.transaction("drop") as connection:
        connection.execute(statement("schema", "lock"))
        drop_foreign_staging(connection, pipeline=session.pipeline, scopes=None, but_token="")
        forget_branches(connection, session)
        was_there = forget_pipeline(connection, session)
        done = (f"removed pipeline {session.pipeline} from the target",) if was_there else ()
        origins = drop_origins(connection, session)
        return Removal(done=done) + origins + drop_unused_schema(connection, session, "the target")


def forget_pipeline(connection: Connection, session: Session) -> bool:
    """Delete its row, and those that refer to it: in a session that is a replica's by the role's default, foreign keys
    delete nothing. Says whether it was there. Errors: psycopg's own.
    """
    names = {"pipeline": session.pipeline, "schema": SCHEMA}
    for (table,) in connection.execute(statement("drop", "referring"), names).fetchall():
        delete = statement("drop", "delete_referring", table=sql.Identifier(table))
        connection.execute(delete, names)
    return connection.execute(statement("drop", "delete"), names).rowcount == 1


def drop_unused_schema(connection: Connection, session: Session, where: str) -> Removal:
    """Forget the pipeline's copy, and drop the schema where nobody else has anything in it."""
    if _has(connection, "copy"):
        connection.execute(statement("drop", "delete_copy"), {"pipeline": session.pipeline})
    if _is_used(connection, session):
        return Removal()
    try:
        with connection.transaction():
            connection.execute(statement("drop", "drop_schema"))
    except psycopg.errors.InsufficientPrivilege as error:
        command = f"DROP SCHEMA {quoted(SCHEMA)} CASCADE"
        what = f"schema {SCHEMA}, which holds no pipeline any more: {error.diag.message_primary}"
        return Removal(left=(Leftover(side=Side.TARGET, what=what, command=command),))
    return Removal(done=(f"dropped schema {SCHEMA} from {where}, since no pipeline is left in it",))


def _is_used(connection: Connection, session: Session) -> bool:
    """True while others need the schema: pipelines; copies of those that are registered once theirs is there; queues;
    the database as a source that sends DDL.
    """
    users = {"pipeline": "other_pipelines", "copy": "other_copies", "task": "other_tasks"}
    return _has(connection, "ddl_key") or any(
        _holds_others(connection, session, others) for table, others in users.items() if _has(connection, table)
    )


def _holds_others(connection: Connection, session: Session, others: str) -> bool:
    try:
        with connection.transaction():
            found = connection.execute(statement("drop", others), {"pipeline": session.pipeline}).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        # The table is another role's, and so is what it holds.
        return True
    return found == (True,)


def _has(connection: Connection, table: str) -> bool:
    names = {"schema": SCHEMA, "table": table}
    return connection.execute(statement("drop", "has"), names).fetchone() == (True,)
