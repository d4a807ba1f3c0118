"""The statements beside this module, by file name, with the schema's name in them."""

from __future__ import annotations

from functools import cache
from typing import Final, LiteralString

from psycopg import sql

from airflow_parallel_apply.postgres.statements import folder

DEFAULT_SCHEMA: Final = "parallel_apply"

SCHEMA_VERSION: Final = 2
"""Version of the tables that these statements need: the number of the newest migration."""

_MAX_SCHEMA_BYTES: Final = 50

_COLUMNS: Final = sql.SQL(
    "task.id, task.queue, task.version, task.sequence, task.at, task.claimant, task.claims, task.attempt, task.err, "
    "task.value, task.created, task.modified"
)
"""In the order that `rows.to_task` reads."""


class Statements:
    """`statements["claim"]` is the text of `sql/claim.sql`."""

    def __init__(self, schema: str) -> None:
        if not 0 < len(schema.encode()) <= _MAX_SCHEMA_BYTES:
            raise ValueError(f"a queue's schema has a name of 1 to {_MAX_SCHEMA_BYTES} bytes: {schema!r}")
        self.schema = schema
        self._texts, self._migrations = _rendered(schema)

    @property
    def channel(self) -> str:
        """The channel on which a modify announces the queues that it changed."""
        return f"{self.schema}.task"

    def __getitem__(self, name: str) -> bytes:
        return self._texts[name]

    def migrations(self, *, above: int) -> tuple[tuple[int, bytes], ...]:
        """The migrations that bring tables of version `above` to the newest, in order."""
        return tuple((number, text) for number, text in sorted(self._migrations.items()) if number > above)


@cache
def _rendered(schema: str) -> tuple[dict[str, bytes], dict[int, bytes]]:
    """The statements by name, and the migrations by number."""
    texts = {name: _render(text, schema) for name, text in folder(__package__, "sql").items()}
    migrations = {int(name): _render(text, schema) for name, text in folder(__package__, "sql/migrations").items()}
    return texts, migrations


def _render(text: LiteralString, schema: str) -> bytes:
    return sql.SQL(text).format(schema=sql.Identifier(schema), columns=_COLUMNS).as_bytes(None)
