"""Refuses rows whose columns' names belong to other columns at the target by now, as far as the columns' numbers there
show it, or their types where numbers are not known. Columns that exchanged names before their rows came would get each
other's values; a column that was created in the place of another has lost the values of older rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_parallel_apply.pipeline.errors import PlanError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.postgres.catalog.renamed_columns import lost_columns
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.pipeline.target.postgres.catalog.untold import recopying
from airflow_parallel_apply.pipeline.target.postgres.redefine.redefine import is_followed
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.redefinition import compare_definitions


def require_own_columns(connection: Connection, session: Session, tables: Sequence[TargetTable]) -> None:
    """Require tables that do not show a later definition in which names of columns belong to others, and have lost no
    column that the last definition has. Errors: `PlanError`, `TargetError`; psycopg's own.
    """
    for table in tables:
        older = table.relation
        if table.lost_columns:
            _require_dropped(session, older, table.lost_columns)
        if any(table.columns[column.name].type_sql != column.type_name for column in older.columns):
            for newer in session.definitions():
                if _passes_names_on(older, newer) and is_followed(connection, session, older, newer):
                    raise _ahead(newer)


def _require_dropped(session: Session, relation: Relation, names: Sequence[str]) -> None:
    """Require columns that a later definition does not have, so that nobody asks for their values."""
    last = [one for one in session.definitions() if one.oid == relation.oid][-1:]
    kept = {column.number for one in last for column in one.columns}
    lost = [column.name for column in relation.columns if column.name in names and column.number in kept]
    if lost:
        raise lost_columns(relation, lost, pipeline=session.pipeline)


def _passes_names_on(older: Relation, newer: Relation) -> bool:
    """True if a column has a name in a later definition of the same table that another one had before."""
    if newer.relation_id <= older.relation_id or newer.oid is None or newer.oid != older.oid:
        return False
    names = {column.name for column in older.columns}
    pairs = [(one.old, one.new) for one in compare_definitions(older, newer).changes]
    return any(old and new and old.name != new.name and new.name in names for old, new in pairs)


def _ahead(newer: Relation) -> PlanError:
    return PlanError(
        f"columns of {newer.name} have taken each other's names at the target before the rows came that the source "
        "wrote before that",
        table=newer.name,
        hint=f"Undo that at the target, then run again: the run stops where it is due. Or: {recopying(newer)}",
    )
