"""Deletes the rows that went with a partition of the source's table, wherever they are here: `remove_rows`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from airflow_parallel_apply.pipeline.errors import PlanError, TargetError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import listed
from airflow_parallel_apply.pipeline.target.postgres.catalog.search_path import without_search_path
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable, lock_tables
from airflow_parallel_apply.pipeline.target.postgres.catalog.untold import recopying
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.guards import DELETE, turned_away
from airflow_parallel_apply.pipeline.target.postgres.merge.side_writes import SideWrites, Written
from airflow_parallel_apply.pipeline.target.postgres.redefine.applied_tables import (
    describe_applied,
    present_columns,
    present_name,
)
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
    mean other columns; `TargetError` where the target cannot read it, or keeps rows; as `describe_applied`.
    """
    newer = newer_copies(connection, session, step.end_offset)
    if newer and not newer.keys().isdisjoint(
        {relation.name, ".".join(present_name(connection, session, relation) or ())}
    ):
        return
    lock_tables(connection, [relation])
    names = present_columns(connection, session, relation)
    if not step.rows.is_of(relation) or any(names.get(number, name) != name for number, name, _ in step.rows.keys):
        raise PlanError(
            f"rows of {relation.name} went with a partition of the source, and the columns by which they are told "
            "apart have other names or types here by now",
            op="apply",
            table=relation.name,
            hint=recopying(relation),
        )
    table = _held(connection, session, step, relation)
    others = [name for _, name, type_name in step.rows.keys if not _is_alike(table.columns[name].type_sql, type_name)]
    if others:
        raise TargetError(
            f"rows of {relation.name} went with a partition of the source, and here they are told apart by columns of "
            f"other types: {listed(others)}",
            table=relation.name,
            column=others[0],
            hint=f"Give the columns the source's types, then run again. Or: {recopying(relation)}",
        )
    beside.begin([table])
    of_table = b" FROM " + table.own_rows.as_bytes(connection) + b" WHERE " + step.rows.condition.encode()
    with without_search_path(connection):
        deleted = connection.execute(b"DELETE" + of_table).rowcount
        (left,) = connection.execute(b"SELECT count(*)" + of_table).fetchone() or (0,)
    if left:
        raise turned_away(connection, table, DELETE, expected=deleted + left, found=deleted, as_replica=as_replica)
    beside.count(table, Written(deleted=deleted))
    beside.require_none()


def _held(connection: Connection, session: Session, step: Remove, relation: Relation) -> TargetTable:
    """The table, which is locked. What became of columns that the condition does not name does not matter: DDL that was
    sent may have altered them, and no row came since.
    """
    numbers = {number for number, _, _ in step.rows.keys}
    named = replace(
        relation,
        columns=tuple(column for column in relation.columns if column.number in numbers),
        computed=None,
        computed_numbers=None,
        expressions=(),
    )
    (table,) = describe_applied(connection, [named], pipeline=session.pipeline)
    if table.lost_columns or any(table.columns[one.name].type_sql != one.type_name for one in named.columns):
        # Another column's, perhaps, which all of them show.
        whole = describe_applied(connection, [relation], pipeline=session.pipeline)
        require_own_columns(connection, session, whole)
    return table


def _is_alike(here: str, there: str) -> bool:
    return here == there or all(_NUMBER.fullmatch(one) for one in (here, there))
