"""The messages that a slot has still to send: `Pending`. The server decodes its WAL again for each question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.source.postgres.session import statement


@dataclass(frozen=True, slots=True)
class Pending:
    """The slot's stream, as a publication sends it, up to what is on disk."""

    connection: psycopg.Connection[Any]
    slot: str
    publication: str

    def read(self, name: str) -> list[tuple[int, bytes]]:
        """The rows of a statement that reads the stream. Errors: psycopg's own."""
        names = {"slot": sql.Literal(self.slot), "publication": sql.Literal(f'"{self.publication}"')}
        return self.connection.execute(sql.SQL(statement(name)).format(**names)).fetchall()

    def bring_to_disk(self) -> None:
        """Have the stream reach all that the catalog shows by now. Errors: psycopg's own."""
        with self.connection.transaction():
            self.connection.execute("SET LOCAL synchronous_commit = local")
            self.connection.execute("SELECT pg_logical_emit_message(true, 'parallel_apply', '')")
