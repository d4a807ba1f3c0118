"""Columns that the target's table has of an older definition, and a newer one has otherwise named, or not at all.

The history drops and renames them when it comes to the newer definition; a copy of the table passes over that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.postgres.redefine.found_columns import FoundColumn, find_columns
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.redefinition import compare_definitions
from airflow_parallel_apply.postgres.quoting import quoted


def surplus_since(
    connection: Connection, olds: Sequence[Relation], new: Relation, names: Mapping[int, str]
) -> tuple[str, ...]:
    """The statements that leave the target's table without them. `names`: further ones of the source's columns, by
    their numbers. Errors: psycopg's own.
    """
    columns = dict(find_columns(connection, new))
    now = {column.number: column.name for column in new.columns}
    seen = {name: now[number] for number, name in names.items() if number in now}
    return (
        # Computed ones first: what they are computed of cannot be dropped before them.
        *(
            statement
            for old in olds
            for statement in _statements(
                new, columns, (*(old.computed or ()), *(column.name for column in old.columns)), _renamed(old, new)
            )
        ),
        *_statements(new, columns, names.values(), seen),
    )


def _statements(
    new: Relation, columns: dict[str, FoundColumn], names: Iterable[str], renamed: Mapping[str, str]
) -> Iterator[str]:
    needed = {*(column.name for column in new.columns), *(name for name, _ in new.expressions), *(new.computed or ())}
    for name in names:
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
