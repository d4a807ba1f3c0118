"""PostgreSQL as one side of a comparison: a read-only session, and the queries that it answers about a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from airflow_parallel_apply.pipeline.compare.protocol import ComparedSide, SourceTable, TableRefused
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import ConfigurationError, ParallelApplyError
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.diagnosis import translate
from airflow_parallel_apply.postgres import sqlstate
from airflow_parallel_apply.postgres.keepalive import with_keepalives
from airflow_parallel_apply.postgres.settings import EXACT, LASTING, PLAIN, SettingsLost, settle
from airflow_parallel_apply.postgres.statements import statements

_CANCEL_SECONDS: Final = 5.0
_LOOKING: Final = {"search_path": "", "default_transaction_read_only": "on", "lock_timeout": "30s"}


class PostgresSide:
    """See `ComparedSide`."""

    def __init__(self, name: str, connection: psycopg.Connection[Any]) -> None:
        self.name = name
        self.connection = connection

    def tables(self) -> list[SourceTable]:
        with self._errors(), self.connection.cursor(row_factory=class_row(SourceTable)) as cursor:
            return cursor.execute(_statement("tables")).fetchall()

    def having(self, table: SourceTable) -> SourceTable:
        if not table.generated:
            return table
        with self._errors():
            found = psycopg.RawCursor(self.connection).execute(_statement("columns"), [table.schema, table.table])
            here = {name for (name,) in found}
        return replace(table, columns=[*table.columns, *(name for name in table.generated if name in here)])

    def checksum(self, table: SourceTable) -> tuple[int, int]:
        with self.refusing(table):
            ((count, total),) = self._ask("checksum", table)
        return count, int(total)

    def buckets(self, table: SourceTable, buckets: int) -> dict[int, tuple[int, int]]:
        with self._errors():
            return {bucket: (count, int(total)) for bucket, count, total in self._ask("buckets", table, buckets)}

    def rows(self, table: SourceTable, buckets: int, wanted: list[int]) -> Counter[tuple[str, str]]:
        with self._errors():
            found = self._ask("rows", table, buckets, wanted)
        return Counter({(key, digest): count for key, digest, count in found})

    def cancel(self) -> None:
        with suppress(psycopg.Error):
            self.connection.cancel_safe(timeout=_CANCEL_SECONDS)

    def rows_of(self, table: SourceTable) -> sql.Composed:
        """The table's own rows, as a query's FROM takes them."""
        found = psycopg.RawCursor(self.connection).execute(_statement("own_rows"), [table.schema, table.table])
        (own,) = found.fetchone() or (False,)
        return sql.SQL("ONLY {}" if own else "{}").format(sql.Identifier(table.schema, table.table))

    @contextmanager
    def refusing(self, table: SourceTable) -> Iterator[None]:
        """Around the reading of a table. Errors: also `TableRefused`."""
        try:
            yield
        except psycopg.errors.LockNotAvailable as error:
            raise TableRefused(f"it is locked by {self._holders(table)}") from error
        except psycopg.Error as error:
            if error.sqlstate is not None and error.sqlstate[:2] == sqlstate.ACCESS_CLASS:
                raise TableRefused(error.diag.message_primary) from error
            raise self._translated(error) from error

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._translated(error) from error

    def _holders(self, table: SourceTable) -> str:
        """Those that let nobody read the table: of one whose partition is locked, none is found."""
        cursor = psycopg.RawCursor(self.connection).execute(_statement("holders"), [table.schema, table.table])
        return ", ".join(holder for (holder,) in cursor) or "somebody"

    def _translated(self, error: psycopg.Error) -> ParallelApplyError:
        return translate(error, op="compare", server=self.name)

    def _ask(self, name: str, table: SourceTable, *parameters: object) -> list[tuple[Any, ...]]:
        # A table without a key is told apart by whole rows.
        query = _statement(name).format(
            rows=self.rows_of(table),
            columns=sql.SQL(", ").join(map(sql.Identifier, table.columns)),
            key=sql.SQL(", ").join(map(sql.Identifier, table.key or table.columns)),
        )
        # With the server's own parameter marks, since a name may hold a percent sign.
        return psycopg.RawCursor(self.connection).execute(query, parameters or None).fetchall()


@contextmanager
def open_postgres_side(endpoint: Endpoint, name: str) -> Iterator[ComparedSide]:
    """A session of its own. Errors: `Unavailable`, `ConfigurationError`."""
    with open_session(endpoint, name) as connection:
        yield PostgresSide(name, connection)


@contextmanager
def open_session(endpoint: Endpoint, name: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection that only reads, under equal settings on both sides. Errors: as of `open_postgres_side`."""
    try:
        connection = psycopg.connect(
            with_keepalives(endpoint.url), autocommit=True, application_name="parallel-apply compare"
        )
        settle(lambda query: connection.execute(query).fetchall(), EXACT, LASTING, PLAIN, _LOOKING)
    except SettingsLost as error:
        raise ConfigurationError(f"the {name}: {error}", op="compare", hint=error.hint) from error
    except psycopg.Error as error:
        raise translate(error, op="compare", server=name) from error
    with connection:
        yield connection


def _statement(name: str) -> sql.SQL:
    return sql.SQL(statements(__package__, "compare")[name])
