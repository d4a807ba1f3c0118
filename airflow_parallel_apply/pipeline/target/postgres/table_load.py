"""One relation's part of what an attempt loads: its net changes become COPY text, and go into a staging table, or
straight into their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Final

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from airflow_parallel_apply.pipeline.apply.net_changes import DELETE, INSERT, UPDATE, NetChanges, Numbers
from airflow_parallel_apply.pipeline.apply.reduce import Reducer
from airflow_parallel_apply.pipeline.errors import DirectRefused
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import StagedTable
from airflow_parallel_apply.pipeline.target.postgres.applying import Applying
from airflow_parallel_apply.pipeline.target.postgres.diagnosis import copy_line, translate
from airflow_parallel_apply.pipeline.target.postgres.enum_labels import say_label
from airflow_parallel_apply.pipeline.target.postgres.exact import inexact_columns, require_exact, say_retyping
from airflow_parallel_apply.pipeline.target.postgres.narrow import refused_by_width
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.postgres.staging import (
    copy_into_staging,
    copy_into_table,
    create_staging,
)
from airflow_parallel_apply.pipeline.target.postgres.staging_text import row_text, staging_text
from airflow_parallel_apply.pipeline.target.postgres.tables import TargetTable, describe_tables

_FLUSH_BYTES: Final = 4 * 2**20
"""Bytes of one relation's COPY text that are sent at once."""


class TableLoad:
    """Not thread-safe, used once. `applying`: see `takes` there; None: everything is staged."""

    def __init__(
        self,
        connection: Connection,
        relation: Relation,
        schema: str,
        staging: str,
        applying: Applying | None,
    ) -> None:
        self._connection = connection
        self._schema = schema
        self._relation = relation
        self._name = staging
        self._reducer = Reducer(relation)
        self._target: TargetTable | None = None
        self._inexact: tuple[int, ...] = ()
        self._texts: list[memoryview] = []
        self._seqnos: list[Numbers] = []
        self._texts_unsent = False
        self._has_unsent = False
        self._counts = {INSERT: 0, UPDATE: 0, DELETE: 0}
        self._applying = applying
        self._takes_rows = False
        """Insertions go straight into the table, and no other change has come."""
        self.buffered_bytes = 0

    @property
    def row_count(self) -> int:
        return sum(self._counts.values())

    def feed(self, rows: pa.RecordBatch) -> None:
        self._keep(self._reducer.feed(rows))

    def finish(self) -> None:
        self._keep(self._reducer.finish())
        self.flush()
        self._stop_inserting()
        if self._target is not None and self._inexact:
            staging = sql.Identifier(self._schema, self._name)
            require_exact(self._connection, staging, self._target, self._inexact)

    def staged(self) -> StagedTable:
        return StagedTable(
            relation_id=self._relation.relation_id,
            staging=self._name,
            inserts=self._counts[INSERT],
            updates=self._counts[UPDATE],
            deletes=self._counts[DELETE],
            has_unsent=self._has_unsent,
        )

    def flush(self) -> None:
        """Send what is buffered as one COPY."""
        if not self._texts or self._target is None:
            return
        if self._takes_rows:
            self._insert(self._target)
            return
        command = copy_into_staging(
            self._schema, self._name, self._target, self._inexact, with_unsent=self._texts_unsent
        )
        try:
            with self._copy(command) as copy:
                for text in self._texts:
                    copy.write(text)
        except psycopg.Error as error:
            raise self._located(error) from error
        self._texts.clear()
        self._seqnos.clear()
        self.buffered_bytes = 0

    def _keep(self, found: Iterator[NetChanges]) -> None:
        for changes in found:
            if not len(changes.values):
                continue
            if self._target is None:
                self._begin(changes)
            if self._takes_rows and changes.count(INSERT) < len(changes.values):
                self.flush()
                self._stop_inserting()
                self._create()
            unsent = changes.unsent is not None
            if unsent and not self._texts_unsent:
                # From here on every line has one field more.
                self.flush()
                self._texts_unsent = self._has_unsent = True
            if self._takes_rows:
                text = row_text(changes)
            else:
                text = staging_text(changes, self._inexact, with_unsent=self._texts_unsent)
            self._texts.append(text)
            self._seqnos.append(changes.seqnos)
            self.buffered_bytes += len(text)
            for operation in self._counts:
                self._counts[operation] += changes.count(operation)
            if self.buffered_bytes >= _FLUSH_BYTES:
                self.flush()

    def _begin(self, changes: NetChanges) -> None:
        (self._target,) = describe_tables(self._connection, [self._relation], schema=self._schema)
        is_insertion = changes.unsent is None and changes.count(INSERT) == len(changes.values)
        if is_insertion and self._applying is not None and self._applying.takes(self._connection, self._target):
            self._takes_rows = True
        else:
            self._create()

    def _create(self) -> None:
        if self._target is not None:
            self._inexact = inexact_columns(self._target)
            self._connection.execute(create_staging(self._schema, self._name, self._target, self._inexact))

    def _insert(self, target: TargetTable) -> None:
        """Insert the buffered rows into the table itself. Errors: `DirectRefused`; psycopg's own."""
        wanted = sum(len(seqnos) for seqnos in self._seqnos)
        try:
            with self._connection.cursor() as cursor:
                with cursor.copy(copy_into_table(target)) as copy:
                    for text in self._texts:
                        copy.write(text)
                inserted = cursor.rowcount
        except psycopg.Error as error:
            if self._connection.closed:
                raise
            raise DirectRefused(type(error).__name__, op="stage", table=self._relation.name) from error
        if inserted != wanted:
            raise DirectRefused(f"{inserted} rows of {wanted}", op="stage", table=self._relation.name)
        self._texts.clear()
        self._seqnos.clear()
        self.buffered_bytes = 0

    def _stop_inserting(self) -> None:
        """Count from here on what is staged."""
        if self._takes_rows and self._applying is not None:
            self._applying.loaded(self.staged())
            self._counts = dict.fromkeys(self._counts, 0)
            self._takes_rows = False

    def _copy(self, command: object) -> AbstractContextManager[psycopg.Copy]:
        return self._connection.cursor().copy(command)  # type: ignore[arg-type]

    def _located(self, error: psycopg.Error) -> Exception:
        refusal = refused_by_width(error, self._target) if self._target is not None else None
        found = refusal or translate(error, op="stage", table=self._relation.name)
        if refusal is None and self._target is not None:
            say_retyping(found, error, self._target)
            say_label(found, error, self._relation)
        line = copy_line(error)
        if line is not None and self._seqnos:
            seqnos = np.concatenate(self._seqnos)
            if line <= len(seqnos):
                found.seqno = int(seqnos[line - 1])
        return found
