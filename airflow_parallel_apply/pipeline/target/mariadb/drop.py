"""Removing a pipeline from its target: positions and staging; with the last pipeline the database `parallel_apply`."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.model.removal import Removal
from airflow_parallel_apply.pipeline.target.mariadb.holders import end_holders
from airflow_parallel_apply.pipeline.target.mariadb.naming import DATABASE
from airflow_parallel_apply.pipeline.target.mariadb.schema import is_installed
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.staging import drop_foreign_staging


def drop_commands(pipeline: str) -> tuple[str, ...]:
    """The commands that a person runs at a target that we cannot reach."""
    return tuple(
        f"DELETE FROM {DATABASE}.{table} WHERE pipeline = '{pipeline}'" for table in ("position", "holder", "pipeline")
    )


def drop_target(session: Session, *, force: bool) -> Removal:
    """See `Target.drop`."""
    if not is_installed(session):
        return Removal()
    with session.errors("drop"):
        session.rest()
        if force:
            end_holders(session)
        drop_foreign_staging(session)
        with session.atomic():
            for table in ("position", "holder"):
                session.execute(f"DELETE FROM {DATABASE}.{table} WHERE pipeline = %s", [session.pipeline])
            gone = session.execute(f"DELETE FROM {DATABASE}.pipeline WHERE pipeline = %s", [session.pipeline])
        done = (f"removed pipeline {session.pipeline} from the target",) if gone.rowcount else ()
        if session.row(f"SELECT 1 FROM {DATABASE}.pipeline LIMIT 1") is None:
            session.execute(f"DROP DATABASE {DATABASE}")
            done = (*done, f"dropped database {DATABASE} from the target, since no pipeline is left in it")
    return Removal(done=done)
