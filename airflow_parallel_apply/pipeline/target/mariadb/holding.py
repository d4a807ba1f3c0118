"""Holding a table as it is until the transaction ends: nobody can alter one that a transaction has read."""

from __future__ import annotations

import pymysql
from pymysql.constants import ER

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.finding import hint_of
from airflow_parallel_apply.pipeline.target.mariadb.diagnosis import code_of
from airflow_parallel_apply.pipeline.target.mariadb.fit import describe_table
from airflow_parallel_apply.pipeline.target.mariadb.guards import guard_findings
from airflow_parallel_apply.pipeline.target.mariadb.quoting import quoted
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.table_names import require_own_name
from airflow_parallel_apply.pipeline.target.mariadb.tables import TargetTable
from airflow_parallel_apply.pipeline.target.relations import Relations


def hold_table(session: Session, relations: Relations, relation_id: int) -> TargetTable:
    """The table that a definition's rows go into, before the transaction writes the first one: of an engine without
    transactions nothing could be taken back. Errors: `TargetError`, also where somebody has altered it so that rows
    would not stay as they are sent, or given it another name; the driver's own.
    """
    relation = relations(relation_id)
    try:
        session.execute(f"SELECT 1 FROM {quoted(*session.address.place(relation))} LIMIT 0")
    except pymysql.MySQLError as error:
        if code_of(error) != ER.NO_SUCH_TABLE:
            raise
    # Held, it keeps its name: one that has another of its names is none that it gets now.
    require_own_name(session, relation, relations.definitions())
    table = describe_table(session, relation)
    for found in guard_findings(session, table):
        raise TargetError(found.what, table=relation.name, column=found.column, hint=hint_of([found]))
    return table
