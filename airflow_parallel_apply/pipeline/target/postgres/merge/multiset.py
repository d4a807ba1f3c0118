"""Merge into tables whose rows are told apart by all their values: multisets of rows.

An update takes one row with the old image and puts one with the new. Over a unit that is a net count for each image:
what is below zero is deleted, as many of the equal rows as that, and what is above is inserted. The order in which the
unit's changes came does not matter to the counts, so they may have been staged by several attempts.

Images are equal when their texts are, by the types' output, after both went through the target's column types: finer
than the types' own equality (1.0 and 1.00 are two rows), and there for every type (json, xml, point).

Each statement reads the table once, whatever the number of changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from airflow_parallel_apply.pipeline.errors import StagingLost, TargetError
from airflow_parallel_apply.pipeline.model.epoch import StagedTable
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.pipeline.target.postgres.catalog.unfit import rows_differ
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.guards import DELETE, INSERT, changed_rows, turned_away
from airflow_parallel_apply.pipeline.target.postgres.merge.side_writes import Written
from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA
from airflow_parallel_apply.pipeline.target.postgres.row_text import row_text
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.postgres.staging.staged_columns import free_name, operation_column
from airflow_parallel_apply.pipeline.target.postgres.statements import statement

_SHOWN_ROWS: Final = 3
_SHOWN_LETTERS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiset:
    """One table, and all that a unit staged for it."""

    table: TargetTable
    staged: tuple[StagedTable, ...]
    as_replica: bool

    def delete(self, connection: Connection) -> int:
        """Delete rows; return how many went. Errors: `TargetError` that names rows which are not there, or what turns
        rows away; `StagingLost` when staging lost rows.
        """
        expected = sum(one.inserts + one.deletes for one in self.staged)
        (counted,) = connection.execute(self._sql("staged")).fetchone() or (0,)
        if counted != expected:
            raise StagingLost(
                f"staging of {self.table.relation.name} lost rows, as a crash of the target does",
                hint="The unit is staged again.",
            )
        if self._is_guarded:
            connection.execute(self._sql("expect"))
        missing, images, wanted, gone = connection.execute(self._sql("delete")).fetchone() or (0, None, 0, 0)
        if missing:
            raise missing_images(self.table, int(missing), images)
        if gone != wanted:
            raise self._turned_away(connection, DELETE, int(wanted), gone)
        return int(gone)

    def insert(self, connection: Connection, *, deleted: int) -> Written:
        """Returns what both have done. `deleted`: what `delete` returned.

        Errors: `TargetError` that names what turns rows away; psycopg's own.
        """
        expected = sum(one.inserts - one.deletes for one in self.staged) + deleted
        found = connection.execute(self._sql("insert")).rowcount
        if found != expected:
            raise self._turned_away(connection, INSERT, expected, found)
        written = Written(inserted=found, deleted=deleted)
        if not self._is_guarded:
            return written
        if connection.execute(self._sql("unlike")).fetchone() != (0,):
            raise changed_rows(connection, self.table, row="", as_replica=self.as_replica)
        connection.execute(self._sql("forget"))
        return written

    @property
    def _is_guarded(self) -> bool:
        """True if others may change its rows: then its images are counted before and after."""
        return self.table.is_guarded(as_replica=self.as_replica)

    def _turned_away(self, connection: Connection, event: str, expected: int, found: int) -> TargetError:
        return turned_away(connection, self.table, event, expected=expected, found=found, as_replica=self.as_replica)

    def _sql(self, name: str) -> sql.Composed:
        written = [
            sql.Identifier(column.name)
            for column in self.table.relation.columns
            if not self.table.columns[column.name].generated
        ]
        return statement(
            "multiset",
            name,
            target=self.table.identifier,
            rows=self.table.own_rows,
            columns=sql.SQL(", ").join(written),
            changes=sql.SQL(" UNION ALL ").join(self._changes(one) for one in self.staged),
            target_image=image(self.table, "t"),
            inserted=self._computed("inserted"),
            image=self._computed("image"),
            net=self._computed("net"),
            number=self._computed("number"),
            # As long as the name of staging, and told from it by its first letter.
            expected=sql.Identifier(SCHEMA, "e" + self.staged[0].staging[1:]),
            shown_rows=sql.Literal(_SHOWN_ROWS),
            shown_letters=sql.Literal(_SHOWN_LETTERS),
        )

    def _computed(self, name: str) -> sql.Identifier:
        """The name of a value that the statements compute of a change, beside its columns."""
        return free_name(self.table.relation, f"pa:{name}")

    def _changes(self, one: StagedTable) -> sql.Composed:
        return sql.SQL("SELECT s.*, s.{operation} = 'I' AS {inserted}, {values} AS {image} FROM {staging} AS s").format(
            operation=operation_column(self.table.relation),
            values=image(self.table, "s"),
            staging=sql.Identifier(SCHEMA, one.staging),
            inserted=self._computed("inserted"),
            image=self._computed("image"),
        )


def image(table: TargetTable, alias: str) -> sql.Composed:
    """A row's values as one text."""
    return row_text(sql.Identifier(alias, column.name) for column in table.relation.columns)


def missing_images(table: TargetTable, count: int, images: Sequence[str]) -> TargetError:
    """The error of rows that are not there."""
    return TargetError(
        f"{count} rows to change or delete are not in the target",
        table=table.relation.name,
        hint=rows_differ(table),
        values="; ".join(images),
    )
