"""Comparing whole rows: by all the columns that the source has, byte by byte where they are text."""

from __future__ import annotations

from collections.abc import Callable

from airflow_parallel_apply.pipeline.target.mariadb.quoting import quoted
from airflow_parallel_apply.pipeline.target.mariadb.tables import TargetTable


def same_row(table: TargetTable, value: Callable[[str], str] = "%s".format) -> str:
    """True of a row that has these values. `value`: an expression for each column, by its name; the driver's values in
    the columns' order, unless told.
    """
    return " AND ".join(
        f"CAST({quoted(column.name)} AS BINARY) <=> CAST({value(column.name)} AS BINARY)"
        if table.columns[column.name].charset is not None
        else f"{quoted(column.name)} <=> {value(column.name)}"
        for column in table.relation.columns
    )
