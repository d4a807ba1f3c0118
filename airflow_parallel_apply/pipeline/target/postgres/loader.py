"""Load a unit's rows into staging tables of PostgreSQL: what one attempt of one Spark task does with its rows.

One session, one transaction: it ends with everything staged or with nothing. Rows are reduced to net changes as they
stream through, so memory holds a few megabytes of COPY text for each relation and one open key.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from airflow_parallel_apply.pipeline.apply.net_changes import DELETE, INSERT, UPDATE, NetChanges, Numbers
from airflow_parallel_apply.pipeline.apply.reduce import Reducer
from airflow_parallel_apply.pipeline.errors import LogError, OwnershipLost, Unavailable
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import StagedTable
from airflow_parallel_apply.pipeline.target.loading import Loaded, LoadTask
from airflow_parallel_apply.pipeline.target.postgres.diagnosis import copy_line, translate
from airflow_parallel_apply.pipeline.target.postgres.enum_labels import say_label
from airflow_parallel_apply.pipeline.target.postgres.exact import inexact_columns, require_exact, say_retyping
from airflow_parallel_apply.pipeline.target.postgres.naming import DEFAULT_SCHEMA, holder_session, staging_table
from airflow_parallel_apply.pipeline.target.postgres.narrow import refused_by_width
from airflow_parallel_apply.pipeline.target.postgres.positions import is_held
from airflow_parallel_apply.pipeline.target.postgres.preparing import Claim, Preparation
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.staging import (
    copy_into_staging,
    copy_into_table,
    create_staging,
)
from airflow_parallel_apply.pipeline.target.postgres.staging_text import row_text, staging_text
from airflow_parallel_apply.pipeline.target.postgres.tables import TargetTable, describe_tables

_logger = logging.getLogger(__name__)

_FLUSH_BYTES: Final = 4 * 2**20
"""Bytes of one relation's COPY text that are sent at once."""

_BUFFERED_BYTES: Final = 32 * 2**20
"""Bytes of all relations' COPY text that are held together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresLoader:
    """See `Loader`. `channel` None: a unit of all channels. `group`: see `Unit`. `claim`: of a part that may become a
    branch.
    """

    url: str = field(repr=False)
    pipeline: str
    channel: int | None
    token: str
    relations: tuple[Relation, ...]
    group: int | None = None
    claim: Claim | None = None
    schema: str = DEFAULT_SCHEMA

    def load(self, batches: Iterable[pa.RecordBatch], attempt: str, *, task: LoadTask | None = None) -> Loaded:
        found = _Attempt(self, attempt)
        return found.load(batches) if self.claim is None else found.prepare(batches, self.claim, task)


class InsertionsRefused(Exception):
    """Insertions straight into a table were refused, and the transaction with them. Stays in this module."""


class _Attempt:
    """Not thread-safe, used once."""

    def __init__(self, loader: PostgresLoader, attempt: str) -> None:
        self._loader = loader
        self._name = attempt
        self._relations = {relation.relation_id: relation for relation in loader.relations}
        self._session = Session(
            loader.url,
            pipeline=loader.pipeline,
            schema=loader.schema,
            name=holder_session(loader.pipeline, loader.channel, loader.token, group=loader.group),
            synchronous_commit="off",
        )
        self._tables: dict[int, _Staging] = {}
        self._preparation: Preparation | None = None

    def load(self, batches: Iterable[pa.RecordBatch]) -> Loaded:
        channel, token = self._loader.channel, self._loader.token
        try:
            with self._session.transaction("stage", channel=channel, is_brief=False) as connection:
                row_count = self._stage(connection, batches)
        except Unavailable as error:
            # A session that a newer claim ended looks like one that a restart of the server ended. A group's stager
            # holds no position that could tell: its task does.
            if self._loader.group is not None or is_held(self._session, channel, token):
                raise
            raise OwnershipLost(
                "a newer claim took the channel", op="stage", pipeline=self._loader.pipeline, channel=channel
            ) from error
        finally:
            self._session.close()
        return Loaded(tables=self._staged(), row_count=row_count)

    def prepare(self, batches: Iterable[pa.RecordBatch], claim: Claim, task: LoadTask | None) -> Loaded:
        """As `load`, but what can be applied is, in a transaction that is prepared."""
        preparation = Preparation(self._session, claim, task=task, attempt=self._name)
        self._preparation = preparation
        try:
            with self._session.errors("prepare", channel=claim.channel):
                adopted = preparation.adopted()
                if adopted is not None:
                    return Loaded(tables=(adopted,), row_count=sum(batch.num_rows for batch in batches))
                connection = self._session.connection()
                preparation.begin(connection)
                row_count = self._stage(connection, batches)
                tables = preparation.end(connection, self._staged(), self._loader.relations)
                return Loaded(tables=tables, row_count=row_count)
        except InsertionsRefused as error:
            _logger.warning("insertions were refused, the group is staged again: %s", error)
            for _ in batches:
                continue
            return Loaded(tables=preparation.refused, row_count=0)
        finally:
            # What is not prepared is rolled back.
            self._session.close()

    def _stage(self, connection: Connection, batches: Iterable[pa.RecordBatch]) -> int:
        row_count = 0
        for batch in batches:
            row_count += batch.num_rows
            for relation_id, rows in _by_relation(batch):
                self._staging(connection, relation_id).feed(rows)
            self._bound_memory()
        for staging in self._tables.values():
            staging.finish()
        return row_count

    def _staged(self) -> tuple[StagedTable, ...]:
        return tuple(staging.staged() for staging in self._tables.values() if staging.row_count)

    def _staging(self, connection: Connection, relation_id: int) -> _Staging:
        if relation_id not in self._tables:
            relation = self._relations.get(relation_id)
            if relation is None:
                raise LogError(f"rows of relation {relation_id}, which the unit does not define")
            self._tables[relation_id] = _Staging(connection, self._loader, self._name, relation, self._preparation)
        return self._tables[relation_id]

    def _bound_memory(self) -> None:
        while sum(staging.buffered_bytes for staging in self._tables.values()) > _BUFFERED_BYTES:
            max(self._tables.values(), key=lambda staging: staging.buffered_bytes).flush()


class _Staging:
    """One relation's staging table and what waits for it."""

    def __init__(
        self,
        connection: Connection,
        loader: PostgresLoader,
        attempt: str,
        relation: Relation,
        preparation: Preparation | None,
    ) -> None:
        self._connection = connection
        self._schema = loader.schema
        self._relation = relation
        self._name = staging_table(
            loader.pipeline, loader.channel, loader.token, attempt, relation.relation_id, group=loader.group
        )
        self._reducer = Reducer(relation)
        self._target: TargetTable | None = None
        self._inexact: tuple[int, ...] = ()
        self._texts: list[memoryview] = []
        self._seqnos: list[Numbers] = []
        self._texts_unsent = False
        self._has_unsent = False
        self._counts = {INSERT: 0, UPDATE: 0, DELETE: 0}
        self._preparation = preparation
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
        if is_insertion and self._preparation is not None and self._preparation.takes(self._connection, self._target):
            self._takes_rows = True
        else:
            self._create()

    def _create(self) -> None:
        if self._target is not None:
            self._inexact = inexact_columns(self._target)
            self._connection.execute(create_staging(self._schema, self._name, self._target, self._inexact))

    def _insert(self, target: TargetTable) -> None:
        """Insert the buffered rows into the table itself. Errors: `InsertionsRefused`; psycopg's own."""
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
            raise InsertionsRefused(f"{self._relation.name}: {type(error).__name__}") from error
        if inserted != wanted:
            raise InsertionsRefused(f"{self._relation.name}: {inserted} rows of {wanted}")
        self._texts.clear()
        self._seqnos.clear()
        self.buffered_bytes = 0

    def _stop_inserting(self) -> None:
        """Count from here on what is staged."""
        if self._takes_rows and self._preparation is not None:
            self._preparation.loaded(self.staged())
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


def _by_relation(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each relation, in the order they have; without a copy when there is only one."""
    if batch.num_rows == 0:
        return
    batch = _normal(batch)
    column = batch.column("relation_id")
    found = pc.unique(column).to_pylist()
    if len(found) == 1:
        yield found[0], batch
        return
    for relation_id in found:
        yield relation_id, batch.filter(pc.equal(column, relation_id))


def _normal(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Spark may send wide strings: the log's own type, without a copy where it is that."""
    for name in ("key", "values", "unsent"):
        column = batch.column(name)
        if column.type != pa.string():
            batch = batch.set_column(batch.schema.get_field_index(name), name, column.cast(pa.string()))
    return batch
