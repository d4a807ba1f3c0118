"""PostgreSQL's rows for a comparison with another kind: its own text of every value, and numbers of every float."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql

from airflow_parallel_apply.pipeline.compare.postgres.side import PostgresSide, open_session
from airflow_parallel_apply.pipeline.compare.protocol import ComparedRows, SourceTable, TableRefused
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.encode.columns.parse import parse
from airflow_parallel_apply.pipeline.model.copy_text import lists
from airflow_parallel_apply.pipeline.model.former import value_type_of
from airflow_parallel_apply.pipeline.model.value_type import ValueKind, ValueType
from airflow_parallel_apply.postgres.statements import statements

_BATCH_BYTES: Final = 4 * 2**20


class PostgresRows(PostgresSide):
    """See `ComparedRows`."""

    def tables(self) -> list[SourceTable]:
        with self._errors():
            return [replace(table, values=self._types(table)) for table in super().tables()]

    def batches(self, table: SourceTable) -> Iterator[pa.RecordBatch]:
        with self.refusing(table):
            types = self._types(table)
            columns = sql.SQL(", ").join(map(sql.Identifier, table.columns))
            query = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(columns, self.rows_of(table))
            if not table.columns:
                raise TableRefused("it has no columns, and rows without values are not compared")
            for text in self._texts(query):
                yield _typed(text, table.columns, types)

    def _types(self, table: SourceTable) -> dict[str, ValueType]:
        query = statements(__package__, "compare")["types"].encode()
        found = psycopg.RawCursor(self.connection).execute(query, [table.schema, table.table])
        return {name: value_type_of(kind) for name, kind in found}

    def _texts(self, query: sql.Composed) -> Iterator[str]:
        """COPY text of whole rows."""
        held: list[bytes] = []
        size = 0
        with self.connection.cursor() as cursor, cursor.copy(query) as copy:
            for row in copy:
                held.append(bytes(row))
                size += len(held[-1])
                if size >= _BATCH_BYTES:
                    yield b"".join(held).decode()
                    held, size = [], 0
        if held:
            yield b"".join(held).decode()


def _typed(text: str, names: list[str], types: dict[str, ValueType]) -> pa.RecordBatch:
    """A newline inside a value is escaped, so each one ends a row."""
    values: pa.Array = lists(pa.array(text.removesuffix("\n").split("\n"), pa.string())).flatten()
    columns = [values.take(pa.array(range(place, len(values), len(names)))) for place in range(len(names))]
    return pa.RecordBatch.from_arrays(
        [
            parse(column, types[name]) if types[name].kind is ValueKind.FLOAT else column
            for name, column in zip(names, columns, strict=True)
        ],
        names=names,
    )


@contextmanager
def open_postgres_rows(endpoint: Endpoint, name: str) -> Iterator[ComparedRows]:
    """A session of its own. Errors: `Unavailable`, `ConfigurationError`."""
    connection: psycopg.Connection[Any]
    with open_session(endpoint, name) as connection:
        yield PostgresRows(name, connection)
