"""Deletes the rows that went with a partition of the source's table, wherever they are here: `remove_rows`."""

from __future__ import annotations

import re
from typing import Final

from airflow_parallel_apply.pipeline.errors import PlanError, TargetError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import listed
from airflow_parallel_apply.pipeline.target.postgres.catalog.search_path import without_search_path
from airflow_parallel_apply.pipeline.target.postgres.catalog.untold import recopying
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.guards import DELETE, turned_away
from airflow_parallel_apply.pipeline.target.postgres.merge.side_writes import SideWrites, Written
from airflow_parallel_apply.pipeline.target.postgres.redefine.applied_tables import hold_applied, present_name
from airflow_parallel_apply.pipeline.target.postgres.redefine.columns_ahead import require_own_columns
from airflow_parallel_apply.pipeline.target.postgres.redefine.newer_copies import newer_copies
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.steps import Remove

_NUMBER: Final = re.compile(r"smallint|integer|bigint|numeric(\(.*\))?")
"""Numbers of these types are in one order."""


def remove_rows(
    connection: Connection, session: Session, step: Remove, relation: Relation, beside: SideWrites, *, as_replica: bool
) -> None:
    """Delete them from a table that was not copied from a later moment. Errors: `PlanError` where the condition would
    mean other columns; `TargetError` where the target cannot read it, or keeps rows; as `hold_applied`.
    """
    newer = newer_copies(connection, session, step.end_offset)
    if newer and not newer.keys().isdisjoint(
        {relation.name, ".".join(present_name(connection, session, relation) or ())}
    ):
        return
    if not step.rows.is_of(relation):
        raise PlanError(
            f"rows of {relation.name} went with a partition of the source, and the columns by which they are told "
            "apart have other names or types here by now",
            op="apply",
            table=relation.name,
            hint=recopying(relation),
        )
    tables = hold_applied(connection, [relation], pipeline=session.pipeline)
    require_own_columns(connection, session, tables)
    (table,) = tables
    others = [name for _, name, type_name in step.rows.keys if not _is_alike(table.columns[name].type_sql, type_name)]
    if others:
        raise TargetError(
            f"rows of {relation.name} went with a partition of the source, and here they are told apart by columns of "
            f"other types: {listed(others)}",
            table=relation.name,
            column=others[0],
            hint=f"Give the columns the source's types, then run again. Or: {recopying(relation)}",
        )
    beside.begin(tables)
    of_table = b" FROM " + table.own_rows.as_bytes(connection) + b" WHERE " + step.rows.condition.encode()
    with without_search_path(connection):
        deleted = connection.execute(b"DELETE" + of_table).rowcount
        (left,) = connection.execute(b"SELECT count(*)" + of_table).fetchone() or (0,)
    if left:
        raise turned_away(connection, table, DELETE, expected=deleted + left, found=deleted, as_replica=as_replica)
    beside.count(table, Written(deleted=deleted))
    beside.require_none()


def _is_alike(here: str, there: str) -> bool:
    return here == there or all(_NUMBER.fullmatch(one) for one in (here, there))
