"""Columns that the target's table has of an older definition, and a newer one has otherwise named, or not at all.

The history drops and renames them when it comes to the newer definition; a copy of the table passes over that.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.postgres.found_columns import FoundColumn, find_columns
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.redefinition import compare_definitions
from airflow_parallel_apply.postgres.quoting import quoted


def surplus_since(connection: Connection, session: Session, old: Relation, new: Relation) -> tuple[str, ...]:
    """The statements that leave the target's table without them. Errors: psycopg's own."""
    return tuple(_statements(new, dict(find_columns(connection, session, new)), old))


def _statements(new: Relation, columns: dict[str, FoundColumn], old: Relation) -> Iterator[str]:
    needed = {*(column.name for column in new.columns), *(name for name, _ in new.expressions), *(new.computed or ())}
    renamed = _renamed(old, new)
    # Computed ones first: what they are computed of cannot be dropped before them.
    for name in (*(old.computed or ()), *(column.name for column in old.columns)):
        if name in needed or name not in columns:
            continue
        found = columns.pop(name)
        table = f"ALTER TABLE {quoted(*(found.owner or (new.schema, new.table)))}"
        now = renamed.get(name)
        if now is not None and now not in columns:
            columns[now] = found
            yield f"{table} RENAME COLUMN {quoted(name)} TO {quoted(now)}"
        else:
            # Children may have kept it at the source, as their own.
            alone = found.owner is None and not found.is_partitioned
            drop = f"ALTER TABLE ONLY {quoted(new.schema, new.table)}" if alone else table
            yield f"{drop} DROP COLUMN {quoted(name)}"


def _renamed(old: Relation, new: Relation) -> dict[str, str]:
    """Former names and present ones; none where the table was made again, whose columns have numbers of their own."""
    if old.oid is None or old.oid != new.oid:
        return {}
    changes = compare_definitions(old, new).changes
    return {one.old.name: one.new.name for one in changes if one.old is not None and one.new is not None}
