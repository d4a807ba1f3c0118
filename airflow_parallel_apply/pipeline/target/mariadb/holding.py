"""Holding a table as it is until the transaction ends: nobody can alter one that a transaction has read."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import hint_of
from airflow_parallel_apply.pipeline.target.mariadb.guards import guard_findings
from airflow_parallel_apply.pipeline.target.mariadb.quoting import quoted
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.tables import TargetTable, describe_table


def hold_table(session: Session, relation: Relation) -> TargetTable:
    """The table that a definition's rows go into, before the transaction writes the first one: of an engine without
    transactions nothing could be taken back. Errors: `TargetError`, also where somebody has altered it so that rows
    would not stay as they are sent; the driver's own.
    """
    session.execute(f"SELECT 1 FROM {quoted(*session.address.place(relation))} LIMIT 0")
    table = describe_table(session, relation)
    for found in guard_findings(session, table):
        raise TargetError(found.what, table=relation.name, column=found.column, hint=hint_of([found]))
    return table
