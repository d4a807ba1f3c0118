"""Rows that are copied into a table: by a COPY; or with care, if the table may store or receive others than were read.

Where a column has another type than the source's, or triggers and rules act on what comes, the rows go through staging:
its texts are compared there, what the table stores with staging, and what was written with what was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final
from uuid import uuid4

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.diagnosis import translate
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.enum_labels import say_label
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.guards import INSERT, changed_rows, turned_away
from airflow_parallel_apply.pipeline.target.postgres.merge.side_writes import SideWrites, Written
from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.staging.exact import inexact_columns, require_exact, say_retyping
from airflow_parallel_apply.pipeline.target.postgres.staging.narrow import narrow_columns, refused_by_width
from airflow_parallel_apply.pipeline.target.postgres.staging.staged_columns import text_column
from airflow_parallel_apply.pipeline.target.postgres.staging.staging import create_staging

_SUM: Final = sql.SQL('SELECT count(*), sum(hashtextextended(ROW({values})::text COLLATE "C", 0)) FROM {rows}')


def open_copying(
    connection: Connection,
    session: Session,
    table: TargetTable,
    *,
    as_replica: bool,
    followed: Callable[[], Collection[tuple[str, str]]],
) -> Copying:
    """With care, where it is needed. `followed`: schema and name of each of the pipeline's tables."""
    if not needs_care(table, as_replica=as_replica):
        return Copying(connection, table)
    return CarefulCopying(connection, session, table, as_replica=as_replica, followed=followed)


def needs_care(table: TargetTable, *, as_replica: bool) -> bool:
    """True if a plain COPY might leave other rows than were read."""
    return bool(inexact_columns(table) or narrow_columns(table)) or table.is_guarded(as_replica=as_replica)


class Copying:
    """Copies into one table, inside the caller's transaction: `begin`, the COPY `command`, `finish`."""

    def __init__(self, connection: Connection, table: TargetTable) -> None:
        self._connection = connection
        self._table = table
        self._columns = [column.name for column in table.relation.columns if not table.columns[column.name].generated]

    @property
    def columns(self) -> sql.Composed:
        """The columns to read at the source, in this order; some of them come twice."""
        return sql.SQL(", ").join(map(sql.Identifier, self._columns))

    @property
    def command(self) -> sql.Composed:
        """The COPY that takes it."""
        return sql.SQL("COPY {} ({}) FROM STDIN").format(self._table.identifier, self.columns)

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Around the COPY. Errors: `TargetError` for a value that does not fit; psycopg's own."""
        try:
            yield
        except psycopg.IntegrityError as error:
            refusal = refused_by_width(error, self._table)
            if refusal is None:
                raise
            raise refusal from error
        except psycopg.DataError as error:
            found = translate(error, op="", table=self._table.relation.name)
            say_retyping(found, error, self._table)
            say_label(found, error, self._table.relation)
            raise found from error

    def begin(self) -> None:
        """Errors: psycopg's own."""

    def finish(self, count: int) -> None:
        """`count`: the rows that were sent. Errors: `TargetError` that names a column, or what acts on the rows;
        psycopg's own.
        """


class CarefulCopying(Copying):
    """Through staging. `followed`: names of the pipeline's tables."""

    def __init__(
        self,
        connection: Connection,
        session: Session,
        table: TargetTable,
        *,
        as_replica: bool,
        followed: Callable[[], Collection[tuple[str, str]]],
    ) -> None:
        super().__init__(connection, table)
        self._as_replica = as_replica
        self._inexact = inexact_columns(table)
        self._name = f"c_{uuid4().hex}"
        self._beside = SideWrites(connection, session, followed=followed, as_replica=as_replica, only_adds=True)

    @property
    def columns(self) -> sql.Composed:
        again = [self._table.relation.columns[index].name for index in self._inexact]
        return sql.SQL(", ").join(map(sql.Identifier, [*self._columns, *again]))

    @property
    def command(self) -> sql.Composed:
        texts = (text_column(self._table.relation, index) for index in self._inexact)
        names = [*map(sql.Identifier, self._columns), *texts]
        return sql.SQL("COPY {} ({}) FROM STDIN").format(self._staging, sql.SQL(", ").join(names))

    def begin(self) -> None:
        self._connection.execute(create_staging(self._name, self._table, self._inexact))

    def finish(self, count: int) -> None:
        table = self._table
        if self._inexact:
            require_exact(self._connection, self._staging, table, self._inexact)
        self._beside.begin([table])
        names = sql.SQL(", ").join(map(sql.Identifier, self._columns))
        put = sql.SQL("INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM {staging}").format(
            table=table.identifier, names=names, staging=self._staging
        )
        if table.is_guarded(as_replica=self._as_replica):
            self._put_guarded(put, names, count)
        else:
            self._connection.execute(put)
        self._connection.execute(sql.SQL("DROP TABLE {}").format(self._staging))
        self._beside.count(table, Written(inserted=count))
        self._beside.require_none()

    @property
    def _staging(self) -> sql.Identifier:
        return sql.Identifier(SCHEMA, self._name)

    def _put_guarded(self, put: sql.Composed, names: sql.Composed, count: int) -> None:
        wanted = self._connection.execute(_SUM.format(values=names, rows=self._staging)).fetchone()
        found = self._connection.execute(
            sql.SQL("WITH put AS ({} RETURNING {}) {}").format(
                put, names, _SUM.format(values=names, rows=sql.Identifier("put"))
            )
        ).fetchone()
        if found == wanted:
            return
        taken = found[0] if found is not None else 0
        if taken == count:
            raise changed_rows(self._connection, self._table, row="", as_replica=self._as_replica)
        raise turned_away(
            self._connection, self._table, INSERT, expected=count, found=taken, as_replica=self._as_replica
        )
