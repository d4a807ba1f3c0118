"""The columns of staging beside its relation's, and what its queries compute beside them: under names that no column of
the relation has.
"""

from __future__ import annotations

from psycopg import sql

from airflow_parallel_apply.pipeline.model.change import Relation


def operation_column(relation: Relation) -> sql.Identifier:
    """The column that has I, U or D."""
    return free_name(relation, "pa:operation")


def unsent_column(relation: Relation) -> sql.Identifier:
    """The column that has one character for each of the relation's, "1" where the old row's value stays; NULL where
    all was sent.
    """
    return free_name(relation, "pa:unsent")


def text_column(relation: Relation, index: int) -> sql.Identifier:
    """The column that has the source's text of one of the relation's."""
    return free_name(relation, f"pa:text:{index}")


def free_name(relation: Relation, name: str) -> sql.Identifier:
    """A name that none of the relation's columns has: this one, mostly."""
    taken = {column.name for column in relation.columns}
    while name in taken:
        name += ":"
    return sql.Identifier(name)
