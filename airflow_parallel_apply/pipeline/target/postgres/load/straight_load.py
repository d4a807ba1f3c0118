"""Insertions of one relation on their way straight into its table, as COPY text; no staging lies between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from airflow_parallel_apply.pipeline.apply.net_changes import NetChanges
from airflow_parallel_apply.pipeline.errors import DirectRefused
from airflow_parallel_apply.pipeline.model.epoch import StagedTable
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.postgres.staging.staging import copy_into_table
from airflow_parallel_apply.pipeline.target.postgres.staging.staging_text import row_text


@contextmanager
def refused_rows(connection: Connection, table: str) -> Iterator[None]:
    """Around what rows of a table need to go straight into it. Errors: `DirectRefused`; psycopg's own where the
    connection is lost.
    """
    try:
        yield
    except psycopg.Error as error:
        if connection.closed:
            raise
        raise DirectRefused(type(error).__name__, op="stage", table=table) from error


class StraightLoad:
    """Not thread-safe, used once, inside the transaction of an `Applying`."""

    def __init__(self, connection: Connection, table: TargetTable) -> None:
        self._connection = connection
        self._table = table
        self._texts: list[memoryview] = []
        self._waiting_count = 0
        self._row_count = 0
        self.buffered_bytes = 0

    @property
    def goes_beside_others(self) -> bool:
        """True if an insertion may come before updates and deletions that are merged later: nothing but the key tells
        rows apart, so none of them frees what it needs.
        """
        return self._table.is_told_apart_by_key

    def add(self, changes: NetChanges) -> None:
        """Keep these, all of them insertions."""
        text = row_text(changes)
        self._texts.append(text)
        self._waiting_count += len(changes.values)
        self.buffered_bytes += len(text)

    def flush(self) -> None:
        """Send what is kept as one COPY. Errors: `DirectRefused`; psycopg's own where the connection is lost."""
        if not self._texts:
            return
        name = self._table.relation.name
        with refused_rows(self._connection, name), self._connection.cursor() as cursor:
            with cursor.copy(copy_into_table(self._table)) as copy:
                for text in self._texts:
                    copy.write(text)
            inserted = cursor.rowcount
        if inserted != self._waiting_count:
            raise DirectRefused(f"{inserted} rows of {self._waiting_count}", op="stage", table=name)
        self._row_count += inserted
        self._texts.clear()
        self._waiting_count = self.buffered_bytes = 0

    def loaded(self) -> StagedTable | None:
        """The rows that went into the table; None for nothing."""
        if not self._row_count:
            return None
        return StagedTable(
            relation_id=self._table.relation.relation_id,
            staging="",
            inserts=self._row_count,
            updates=0,
            deletes=0,
            has_unsent=False,
        )
