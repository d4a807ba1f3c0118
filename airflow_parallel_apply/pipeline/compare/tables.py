"""One side of a comparison: a read-only session, and the queries that it answers about a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import ConfigurationError, ParallelApplyError
from airflow_parallel_apply.pipeline.keepalive import with_keepalives
from airflow_parallel_apply.pipeline.target.postgres.diagnosis import translate
from airflow_parallel_apply.postgres.settings import EXACT, LASTING, PLAIN, POOLER_HINT, SettingsLost, settle

_LOOKING: Final = {"search_path": "", "default_transaction_read_only": "on"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A table as the source has it. `columns`: those that are compared. `generated`: those that the source computes,
    which are compared where the target has them, too. `key` None: compared as a multiset.
    """

    schema: str
    table: str
    columns: list[str]
    generated: list[str]
    key: list[str] | None

    @property
    def name(self) -> str:
        """For people, never for SQL."""
        return f"{self.schema}.{self.table}"


class ComparedSide:
    """Errors: psycopg's own; `translated` makes the pipeline's of them. Not thread-safe."""

    def __init__(self, name: str, connection: psycopg.Connection[Any]) -> None:
        self.name = name
        self._connection = connection

    def tables(self) -> list[SourceTable]:
        """All ordinary tables, by name."""
        try:
            with self._connection.cursor(row_factory=class_row(SourceTable)) as cursor:
                return cursor.execute(_statements()["tables"]).fetchall()
        except psycopg.Error as error:
            raise self.translated(error) from error

    def having(self, table: SourceTable) -> SourceTable:
        """With those of its generated columns that this side has."""
        if not table.generated:
            return table
        try:
            found = psycopg.RawCursor(self._connection).execute(_statements()["columns"], [table.schema, table.table])
            here = {name for (name,) in found}
        except psycopg.Error as error:
            raise self.translated(error) from error
        return replace(table, columns=[*table.columns, *(name for name in table.generated if name in here)])

    def checksum(self, table: SourceTable) -> tuple[int, int]:
        """Number of rows, and the sum of their checksums."""
        ((count, total),) = self._ask("checksum", table)
        return count, int(total)

    def buckets(self, table: SourceTable, buckets: int) -> dict[int, tuple[int, int]]:
        """Count and sum of each bucket of keys that has rows."""
        return {bucket: (count, int(total)) for bucket, count, total in self._ask("buckets", table, buckets)}

    def rows(self, table: SourceTable, buckets: int, wanted: list[int]) -> Counter[tuple[str, str]]:
        """How often each (key text, checksum) occurs in some of the buckets."""
        found = self._ask("rows", table, buckets, wanted)
        return Counter({(key, digest): count for key, digest, count in found})

    def _rows(self, table: SourceTable) -> sql.Composed:
        found = psycopg.RawCursor(self._connection).execute(_statements()["own_rows"], [table.schema, table.table])
        (own,) = found.fetchone() or (False,)
        return sql.SQL("ONLY {}" if own else "{}").format(sql.Identifier(table.schema, table.table))

    def translated(self, error: psycopg.Error) -> ParallelApplyError:
        """The error to raise instead."""
        return translate(error, op="compare", server=self.name)

    def _ask(self, name: str, table: SourceTable, *parameters: object) -> list[tuple[Any, ...]]:
        # A table without a key is told apart by whole rows.
        query = _statements()[name].format(
            rows=self._rows(table),
            columns=sql.SQL(", ").join(map(sql.Identifier, table.columns)),
            key=sql.SQL(", ").join(map(sql.Identifier, table.key or table.columns)),
        )
        # With the server's own parameter marks, since a name may hold a percent sign.
        return psycopg.RawCursor(self._connection).execute(query, parameters or None).fetchall()


@contextmanager
def open_side(endpoint: Endpoint, name: str) -> Iterator[ComparedSide]:
    """A session of its own. Errors: `Unavailable`, `ConfigurationError`."""
    try:
        connection = psycopg.connect(
            with_keepalives(endpoint.url), autocommit=True, application_name="parallel-apply compare"
        )
        settle(lambda query: connection.execute(query).fetchall(), EXACT, LASTING, PLAIN, _LOOKING)
    except SettingsLost as error:
        raise ConfigurationError(f"the {name}: {error}", op="compare", hint=POOLER_HINT) from error
    except psycopg.Error as error:
        raise translate(error, op="compare", server=name) from error
    with connection:
        yield ComparedSide(name, connection)


@cache
def _statements() -> dict[str, sql.SQL]:
    text = files(__package__).joinpath("compare.sql").read_text(encoding="utf-8")
    parts = (part.partition("\n") for part in text.split("-- name: ")[1:])
    return {name.strip(): sql.SQL(body.strip().removesuffix(";")) for name, _, body in parts}
