"""Tables whose rows have no key: a row is all its values, and may be there several times.

What is to be inserted goes in first, then each deletion takes away one of the rows that have its values: so a row that
comes and goes in one unit is found. Values are compared byte by byte, whatever the columns' collations.
"""

from __future__ import annotations

from airflow_parallel_apply.pipeline.errors import Conflict, TargetError
from airflow_parallel_apply.pipeline.model.epoch import StagedTable
from airflow_parallel_apply.pipeline.target.mariadb.naming import DATABASE
from airflow_parallel_apply.pipeline.target.mariadb.quoting import listed, quoted
from airflow_parallel_apply.pipeline.target.mariadb.same_row import same_row
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.staging import NUMBER, OPERATION
from airflow_parallel_apply.pipeline.target.mariadb.tables import TargetTable


def merge_multiset(session: Session, table: TargetTable, staged: StagedTable) -> None:
    """Apply the changes of one staging table. Errors: `TargetError`, `Conflict`; the driver's own."""
    staging = quoted(DATABASE, staged.staging)
    names = listed(column.name for column in table.relation.columns)
    try:
        inserted = session.exactly(
            f"INSERT INTO {table.quoted} ({names}) SELECT {names} FROM {staging} WHERE {quoted(OPERATION)} = 'I'",
            table=table.relation.name,
        )
    except Conflict as error:
        error.hint = (
            "Rows of a table without a key are inserted before others are deleted: drop the table's unique indexes at "
            "the target, or give the source's table a key."
        )
        raise
    if inserted != staged.inserts:
        raise TargetError(f"{inserted} rows of {staged.inserts} were inserted", table=table.relation.name)
    if not staged.deletes:
        return
    numbers = session.rows(f"SELECT {quoted(NUMBER)} FROM {staging} WHERE {quoted(OPERATION)} = 'D'")
    same = same_row(table, lambda name: f"(SELECT s.{quoted(name)} FROM {staging} s WHERE s.{quoted(NUMBER)} = %s)")
    for (number,) in numbers:
        deleted = session.exactly(
            f"DELETE FROM {table.quoted} WHERE {same} LIMIT 1",
            [number] * len(table.relation.columns),
            table=table.relation.name,
        )
        if deleted != 1:
            raise missing_row(table)


def missing_row(table: TargetTable) -> TargetError:
    """The error of a change whose row the target has not."""
    return TargetError(
        "a row to change is not in the target: none has all its values",
        table=table.relation.name,
        hint="Did somebody else write there, or did the copies differ at the start? `parallel-apply compare` shows it.",
    )
