"""Tables that the pipeline has published and not registered yet, since the run died there or a migration was quick:
what was altered under their first rows.

They had no row when they were published. What was over before the last registration was so before that, too, and what a
table or a type was made with cannot have met a row that was sent otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.source.postgres.registration import RegisteredTable
from airflow_parallel_apply.pipeline.source.postgres.session import statement
from airflow_parallel_apply.pipeline.source.postgres.young_types import altered_young_types


def altered_unregistered(
    connection: psycopg.Connection[Any],
    slot: str,
    publication: str,
    tables: Sequence[RegisteredTable],
    horizon: int | None,
) -> Iterator[tuple[RegisteredTable, tuple[str, ...]]]:
    """Yield those with rows of which columns or types were altered since, and the names of these. `horizon`: that of
    the last registration; a log of an older version has none. Errors: psycopg's own.
    """
    filled = [table for table in tables if _has_rows(connection, table)] if horizon is not None else []
    if not filled:
        return
    arguments = {"oids": [table.oid for table in filled], "horizon": horizon}
    columns: dict[int, list[str]] = {}
    for oid, column in connection.execute(statement("altered_columns"), arguments).fetchall():
        columns.setdefault(oid, []).append(column)
    pairs = [(replace(table, labels=(), attributes=()), table) for table in filled]
    types = {pair[1].oid: names for pair, names in altered_young_types(connection, slot, publication, pairs, horizon)}
    for table in filled:
        names = (*columns.get(table.oid, ()), *types.get(table.oid, ()))
        if names:
            yield table, names


def _has_rows(connection: psycopg.Connection[Any], table: RegisteredTable) -> bool:
    """True, too, where the role may not look."""
    query = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(table.schema, table.table))
    try:
        with connection.transaction():
            found = connection.execute(query).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        return True
    return found is None or bool(found[0])
