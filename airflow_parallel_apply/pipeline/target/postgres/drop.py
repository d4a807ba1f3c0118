"""Removing a pipeline from its target: position, plan, runs, staging; with the last pipeline the schema itself.

One transaction under the pipeline's own row: no run can take the fence, or commit, between the look and the removal.
"""

from __future__ import annotations

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from airflow_parallel_apply.pipeline.errors import FenceBusy
from airflow_parallel_apply.pipeline.finding import Side, quoted
from airflow_parallel_apply.pipeline.removal import Leftover, Removal
from airflow_parallel_apply.pipeline.target.postgres.schema import is_installed
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.staging import drop_foreign_staging


def drop_commands(schema: str, pipeline: str) -> tuple[str, ...]:
    """What a person runs at a target that we cannot reach."""
    name, prefix = sql.Literal(pipeline).as_string(), sql.Literal(f"{pipeline}/").as_string()
    return (
        f"DELETE FROM {quoted(schema, 'pipeline')} WHERE pipeline = {name}",
        f"DELETE FROM {quoted(schema, 'task')} WHERE starts_with(queue, {prefix})",
    )


def drop_target(session: Session, *, force: bool) -> Removal:
    """`FenceBusy` while a run owns the pipeline, unless `force`, which ends its sessions."""
    if not is_installed(session):
        return Removal()
    if force:
        with session.errors("drop"):
            session.end_holders(None, but_token="")
    with session.transaction("drop") as connection:
        connection.execute(session.sql("schema", "lock"))
        names = {"pipeline": session.pipeline}
        row = connection.cursor(row_factory=dict_row).execute(session.sql("fence", "lock"), names).fetchone()
        if row is not None and row["is_owned"] and not force:
            raise FenceBusy(
                f"run {row['owner']} owns the pipeline until {row['lease_until']:%H:%M:%S} UTC",
                hint="Stop it first (parallel-apply stop), or use --force.",
            )
        drop_foreign_staging(connection, schema=session.schema, pipeline=session.pipeline, channels=None, but_token="")
        connection.execute(session.sql("drop", "delete"), names)
        removed = Removal(done=(f"removed pipeline {session.pipeline} from the target",)) if row else Removal()
        has_copies = connection.execute(session.sql("drop", "has_copies"), {"schema": session.schema}).fetchone()
        if has_copies == (True,):
            connection.execute(session.sql("drop", "delete_copy"), names)
            if connection.execute(session.sql("drop", "other_copies")).fetchone() != (0,):
                # Of pipelines that are registered once their copy is there.
                return removed
        return removed + _drop_schema(connection, session)


def _drop_schema(connection: Connection, session: Session) -> Removal:
    others = connection.execute(session.sql("drop", "others")).fetchone()
    if others is not None and others[0]:
        return Removal()
    try:
        with connection.transaction():
            connection.execute(session.sql("drop", "drop_schema"))
    except psycopg.errors.InsufficientPrivilege as error:
        command = f"DROP SCHEMA {quoted(session.schema)} CASCADE"
        what = f"schema {session.schema}, which holds no pipeline any more: {error.diag.message_primary}"
        return Removal(left=(Leftover(side=Side.TARGET, what=what, command=command),))
    return Removal(done=(f"dropped schema {session.schema} from the target, since no pipeline is left in it",))
