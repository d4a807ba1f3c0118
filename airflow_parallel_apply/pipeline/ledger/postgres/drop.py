"""Removing a pipeline from its ledger, with its target's part inside.

One transaction under the pipeline's own row: no run can take the lease between the look and the removal.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow_parallel_apply.pipeline.errors import LeaseBusy
from airflow_parallel_apply.pipeline.ledger.postgres.lease import lock_pipeline
from airflow_parallel_apply.pipeline.ledger.postgres.recopied import require_no_recopy
from airflow_parallel_apply.pipeline.model.removal import Removal
from airflow_parallel_apply.pipeline.target.postgres.drop import drop_unused_schema, forget_pipeline
from airflow_parallel_apply.pipeline.target.postgres.schema import is_installed
from airflow_parallel_apply.pipeline.target.postgres.session import Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement


def drop_ledger(session: Session, drop_target: Callable[[], Removal], *, force: bool, is_one_database: bool) -> Removal:
    """See `Ledger.drop`. In one database the target removes the pipeline's row, which is that of both."""
    if not is_installed(session):
        return drop_target()
    with session.transaction("drop") as connection:
        if is_one_database:
            connection.execute(statement("schema", "lock"))
        row = lock_pipeline(connection, session)
        if row is not None and row["is_owned"] and not force:
            raise LeaseBusy(
                f"run {row['owner']} owns the pipeline until {row['lease_until']:%H:%M:%S} UTC",
                hint="Stop it first (parallel-apply stop), or use --force.",
            )
        if row is not None and not force:
            require_no_recopy(connection, session, row["generation"])
        if is_one_database:
            return drop_target()
        connection.execute(statement("session", "patient"))
        removal = drop_target()
        # Not before: every pipeline of this ledger asks for it, and a target elsewhere may be slow.
        connection.execute(statement("schema", "lock"))
        forget_pipeline(connection, session)
        if row is not None:
            removal += Removal(done=(f"removed pipeline {session.pipeline} from its ledger",))
        return removal + drop_unused_schema(connection, session, "the ledger's database")
