"""Columns whose type is not the source's: what is stored must print the text that was read, or the run stops.

`COPY` and assignments take ' 7 ' for an integer, cut `timestamp` to `date` and pad `char`, without a word. No table of
types could say which values come through, so the server is asked: staging has the source's text beside the value, and a
replay asks for the texts of a batch before it sends its statements. Where types are equal nothing is compared, unless
what they print may be read as something else (`TargetColumn.unsteady`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.errors import ParallelApplyError, TargetError
from airflow_parallel_apply.pipeline.target.postgres.catalog.fit import Fit, fit
from airflow_parallel_apply.pipeline.target.postgres.catalog.retyping import retyped
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.pipeline.target.postgres.staging.narrow import narrow_columns
from airflow_parallel_apply.pipeline.target.postgres.staging.staged_columns import text_column

_REFUSED: Final = (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError, psycopg.NotSupportedError)

_DATA: Final = "22"
_ENCODING: Final = "22P05"

Connection = psycopg.Connection[tuple[Any, ...]]


def inexact_columns(table: TargetTable) -> tuple[int, ...]:
    """Indexes in the relation of the columns that may store a value whose text is not the one that was read."""
    narrow = narrow_columns(table)
    found = []
    for index, column in enumerate(table.relation.columns):
        stored = table.columns[column.name]
        is_exact = fit(column.type_name, stored.type_sql) is Fit.EXACT and not (stored.compound or stored.unsteady)
        if not (is_exact or stored.generated or index in narrow):
            found.append(index)
    return tuple(found)


def require_exact(connection: Connection, staging: sql.Identifier, table: TargetTable, inexact: Sequence[int]) -> None:
    """Compare what staging holds with the texts that it was made of. Errors: `TargetError` that names the first column
    and key; psycopg's own.
    """
    names = [column.name for column in table.relation.columns]
    differs = sql.SQL("concat(s.{}) <> coalesce(s.{}, '') COLLATE \"C\"")
    tests = [differs.format(sql.Identifier(names[index]), text_column(table.relation, index)) for index in inexact]
    keys = [
        sql.SQL("s.{}").format(text_column(table.relation, index) if index in inexact else sql.Identifier(names[index]))
        for index in table.relation.key_indexes
    ]
    found = connection.execute(
        sql.SQL(
            "SELECT ARRAY[{tests}], ARRAY[{texts}], ARRAY[{keys}]::text[] FROM {staging} AS s WHERE {any} LIMIT 1"
        ).format(
            tests=sql.SQL(", ").join(tests),
            texts=sql.SQL(", ").join(sql.SQL("s.{}").format(text_column(table.relation, index)) for index in inexact),
            keys=sql.SQL(", ").join(sql.SQL("concat({})").format(key) for key in keys),
            staging=staging,
            any=sql.SQL(" OR ").join(tests),
        )
    ).fetchone()
    if found is not None:
        is_other, texts, key = found
        place = is_other.index(True)
        raise unlike(table, inexact[place], key=key, text=texts[place])


def find_unlike(
    connection: Connection, table: TargetTable, index: int, texts: Sequence[str]
) -> tuple[str, psycopg.Error | None] | None:
    """One of these texts of a column that the column would print otherwise, or refuses, with what the server says then.
    Errors: psycopg's own.
    """
    stored = table.columns[table.relation.columns[index].name]
    query = sql.SQL('SELECT v FROM unnest($1::text[]) AS v WHERE concat(v::{}) <> v COLLATE "C" LIMIT 1').format(
        sql.SQL(stored.type_sql)
    )
    try:
        with connection.transaction():
            found = psycopg.RawCursor(connection).execute(query, [list(texts)]).fetchone()
    except _REFUSED as error:
        if len(texts) == 1:
            return texts[0], error
        half = len(texts) // 2
        first = find_unlike(connection, table, index, texts[:half])
        return first or find_unlike(connection, table, index, texts[half:])
    return (str(found[0]), None) if found is not None else None


def say_retyping(error: ParallelApplyError, cause: psycopg.Error, table: TargetTable) -> None:
    """Give the error of a value, refused by a column whose type is not the source's, the command that gives it one that
    takes the value. A type that somebody made may have the name of the source's, and be another one.
    """
    state = cause.sqlstate or ""
    if state[:2] != _DATA or state == _ENCODING:
        return
    is_label = (cause.diag.message_primary or "").startswith("invalid input value for enum")
    relation = table.relation
    for index, column in enumerate(relation.columns):
        declared = table.columns[column.name].declared_sql
        if column.name != error.column:
            continue
        if declared != column.type_name:
            error.hint = f"The target's column has the type {declared}, another type than the source's. "
            error.hint += retyped(table, index)
        elif "." in declared and not is_label:
            error.hint = f"The target's type {declared} takes less than the source's of that name. "
            error.hint += f"{retyped(table, index)} Or make that type as the source's is."


def unlike(table: TargetTable, index: int, *, key: Sequence[str | None], text: str | None) -> TargetError:
    """The error for a value that the target would store as another one."""
    relation = table.relation
    column = relation.columns[index]
    stored = table.columns[column.name].type_sql
    names = [relation.columns[place].name for place in relation.key_indexes]
    row = f": {', '.join(f'{name}={value}' for name, value in zip(names, key, strict=True))}" if names and key else ""
    return TargetError(
        f"the target's column has the type {stored}, which stores a value of the source's {column.type_name} as one "
        f"with another text{row}",
        table=relation.name,
        column=column.name,
        hint=retyped(table, index),
        values=text,
    )
