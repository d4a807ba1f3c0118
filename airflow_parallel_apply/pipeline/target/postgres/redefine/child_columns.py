"""Renames children's own columns out of the way of a name that a column of their parent is to have.

At the source no child had such a column any more; otherwise the parent's column could not have been renamed. The
child's own definition shows later whether it was dropped or renamed, and finds the column by its number, whatever its
name is by then.
"""

from __future__ import annotations

from itertools import count

from psycopg import sql

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.postgres.catalog.renamed_columns import out_of_the_way, renaming
from airflow_parallel_apply.pipeline.target.postgres.catalog.table_names import Name
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement


def freeing_name(
    connection: Connection, session: Session, relation: Relation, column: str, *, but: Name | None = None
) -> tuple[list[sql.Composed], tuple[str, ...]]:
    """The statements that free a name in a table's children, and the names of those children whose column is not known
    as one of the source's. `but`: a child in which it is free. Errors: psycopg's own.
    """
    values = {"schema": relation.schema, "table": relation.table, "pipeline": session.pipeline, "column": column}
    found = connection.execute(statement("inherited", "heirs_with_own_column"), values).fetchall()
    statements: list[sql.Composed] = []
    for schema, table, there, _ in found:
        if (schema, table) == but:
            continue
        names = (f"{out_of_the_way(column)}{number or ''}" for number in count())
        free = next(name for name in names if name not in there)
        statements += renaming([((schema, table), column, free)], there)
    return statements, tuple(f"{schema}.{table}" for schema, table, _, is_noted in found if not is_noted)


def is_out_of_the_way(name: str, former: str) -> bool:
    """True of a name that a column of this former one gets here."""
    return name.startswith(out_of_the_way(former))
