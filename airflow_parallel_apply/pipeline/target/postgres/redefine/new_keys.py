"""Keys that moved to other columns at the source: the target tells rows apart by an index over these from then on."""

from __future__ import annotations

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.errors import PlanError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import find_tables
from airflow_parallel_apply.pipeline.target.postgres.catalog.untold import recopying
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.postgres import sqlstate


def index_new_key(connection: Connection, old: Relation, new: Relation) -> None:
    """Make a unique index over the newer definition's key, where it is over other columns than the older one's and the
    target has none yet. Before the definition's first row all rows are the source's of that moment, which obeyed the
    key. An index that cannot be made is left to a person, who is told when it is needed.

    Errors: `PlanError` where rows of the target do not obey the key; psycopg's own.
    """
    if _key(old) == _key(new) or not _key(new):
        return
    (table,) = find_tables(connection, [new])
    if table is None or table.missing_columns or table.key_index is not None:
        return
    names = new.key_names
    statement = sql.SQL("CREATE UNIQUE INDEX ON {} ({})").format(
        table.identifier, sql.SQL(", ").join(map(sql.Identifier, names))
    )
    try:
        with connection.transaction():
            connection.execute(statement)
    except psycopg.errors.UniqueViolation as error:
        raise PlanError(
            f"the key of {new.name} moved to other columns at the source ({', '.join(names)}), and rows of the target "
            "have equal values there",
            table=new.name,
            hint=recopying(new),
        ) from error
    except psycopg.Error as error:
        if error.sqlstate not in (sqlstate.FEATURE_NOT_SUPPORTED, sqlstate.INSUFFICIENT_PRIVILEGE):
            raise


def _key(relation: Relation) -> set[int | str]:
    return {column.number or column.name for column in relation.columns if column.key}
