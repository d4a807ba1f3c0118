"""A query's rows out of PostgreSQL, in one read-only statement: its own text of every value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.export.query import QueryRows
from airflow_parallel_apply.pipeline.model.change import Column
from airflow_parallel_apply.pipeline.source.postgres.catalog.value_types import value_type
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.diagnosis import translate
from airflow_parallel_apply.postgres.keepalive import with_keepalives
from airflow_parallel_apply.postgres.settings import EXACT, LASTING, PLAIN, SettingsLost, settle
from airflow_parallel_apply.postgres.statements import statements

_LINES: Final = 20_000


class PostgresQuery:
    """See `QueryRows`."""

    def __init__(self, connection: psycopg.Connection[Any], query: str) -> None:
        self._connection = connection
        self._query = query.strip().rstrip(";").encode()

    def columns(self) -> tuple[Column, ...]:
        with _errors():
            # In brackets, so that nothing but a query is taken, and prepared, so that it is one; a comment may end it.
            described = self._connection.execute(b"SELECT * FROM (" + self._query + b"\n) AS q LIMIT 0", prepare=True)
            result = described.pgresult
            width = 0 if result is None else result.nfields
            types = [(result.ftype(place), result.fmod(place)) for place in range(width)] if result is not None else []
            if not types:
                return ()
            names = [column.name for column in described.description or ()]
            query = statements(__package__, "query")["types"].encode()
            found = psycopg.RawCursor(self._connection).execute(query, [list(one) for one in zip(*types, strict=True)])
            return tuple(
                Column(name=name, type_name=type_name, value=value_type(type_name, base, is_enum=is_enum))
                for name, (type_name, base, is_enum) in zip(names, found.fetchall(), strict=True)
            )

    def lines(self) -> Iterator[list[str]]:
        held: list[str] = []
        command = b"COPY (" + self._query + b"\n) TO STDOUT"
        with _errors(), self._connection.cursor() as cursor, cursor.copy(command) as copy:
            for row in copy:
                held.append(bytes(row).decode().removesuffix("\n"))
                if len(held) >= _LINES:
                    yield held
                    held = []
        if held:
            yield held


@contextmanager
def open_postgres_query(endpoint: Endpoint, query: str) -> Iterator[QueryRows]:
    """A session of its own that only reads, in the names' usual search path."""
    try:
        connection = psycopg.connect(
            with_keepalives(endpoint.url), autocommit=True, application_name="parallel-apply export"
        )
        settle(
            lambda text: connection.execute(text).fetchall(),
            EXACT,
            LASTING,
            {**PLAIN, "default_transaction_read_only": "on"},
        )
    except SettingsLost as error:
        raise ConfigurationError(str(error), op="export", hint=error.hint) from error
    except psycopg.Error as error:
        raise translate(error, op="export", server="source") from error
    with connection:
        yield PostgresQuery(connection, query)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except psycopg.OperationalError as error:
        raise translate(error, op="export", server="source") from error
    except psycopg.Error as error:
        said = " ".join((error.diag.message_primary or str(error)).split())
        raise ConfigurationError(
            f"the database refuses the query: {said}",
            op="export",
            hint="It has to be one SELECT that writes nothing.",
        ) from error
