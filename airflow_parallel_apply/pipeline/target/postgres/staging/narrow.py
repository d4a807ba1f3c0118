"""Columns of the target that are narrower than the source's, and would cut blanks off the end of a longer value.

`varchar(3)` refuses 'abcd', but takes 'abc ' and keeps 'abc', however the value comes in. So what is longer is refused
here: staging has such a column without its length and with a check, and a replay counts letters itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.target.postgres.catalog.fit import Fit, fit
from airflow_parallel_apply.pipeline.target.postgres.catalog.retyping import retyped
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable

_BOUNDED: Final = re.compile(r"character varying\((\d+)\)")
_CONSTRAINT: Final = "pa:fits:"


def narrow_columns(table: TargetTable) -> Mapping[int, int]:
    """By index in the relation: how many letters the target's column holds, where the source's may hold more."""
    found = {}
    for index, column in enumerate(table.relation.columns):
        type_sql = table.columns[column.name].type_sql
        bounded = _BOUNDED.fullmatch(type_sql)
        if bounded and fit(column.type_name, type_sql) not in (Fit.EXACT, Fit.REFORMATS):
            found[index] = int(bounded[1])
    return found


def constraints(table: TargetTable) -> list[sql.Composed]:
    """For a table with the relation's columns, one for each that is narrow."""
    return [
        sql.SQL("ADD CONSTRAINT {} CHECK (char_length({}) <= {})").format(
            sql.Identifier(f"{_CONSTRAINT}{index}"), sql.Identifier(table.relation.columns[index].name), length
        )
        for index, length in narrow_columns(table).items()
    ]


def refused_by_width(error: psycopg.Error, table: TargetTable) -> TargetError | None:
    """Translate an error that one of `constraints` raised; None if another one did."""
    name = error.diag.constraint_name or ""
    if not name.startswith(_CONSTRAINT):
        return None
    return too_long(table, int(name.removeprefix(_CONSTRAINT)))


def too_long(table: TargetTable, index: int) -> TargetError:
    """The error for a value that the target's column would refuse, or cut blanks off."""
    relation = table.relation
    column = relation.columns[index]
    return TargetError(
        "the target refuses: value too long for its type",
        table=relation.name,
        column=column.name,
        hint=f"The target's column is narrower than the source's. {retyped(table, index)}",
    )
