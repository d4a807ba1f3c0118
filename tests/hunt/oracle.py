"""Tells whether two databases are equal, by a comparison of the hunt's own: columns, and rows as a multiset of texts.

Deliberately not the product's `compare`: both are wrong together only where they make the same mistake twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

_TABLES: Final = """
SELECT c.oid, n.nspname, c.relname, c.relkind,
       array(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
             ORDER BY a.attname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
      AND (n.nspname = ANY(%s) OR c.oid = %s)
ORDER BY 2, 3
"""
_SENT: Final = """
SELECT attname FROM pg_attribute
WHERE attrelid = %s AND attname = ANY(%s) AND attgenerated = '' AND attidentity = '' ORDER BY attnum DESC
"""
_SETTINGS: Final = (
    "SET datestyle = iso; SET intervalstyle = postgres; SET timezone = 'UTC'; SET bytea_output = hex; "
    "SET extra_float_digits = 3; SET client_encoding = 'UTF8'; SET search_path = public; SET row_security = off; "
    "SET idle_in_transaction_session_timeout = 0; SET transaction_timeout = 0"
)
"""Settings of the oracle's own sessions, whatever a trial has set for its database: rounded texts would be equal."""

Rows = Counter[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A table as it was at some moment."""

    oid: int
    schema: str
    name: str
    columns: tuple[str, ...]
    rows: Rows


def differences(
    source_dsn: str, target_dsn: str, schemas: tuple[str, ...], *, known: Collection[str], but: Collection[str] = ()
) -> list[str]:
    """A line for each table that differs, `but` for some. `known`: those of which a row of the present definition was
    sent; of the others, columns that one side lacks are left out, and a table without rows need not be there.
    """
    with psycopg.connect(source_dsn) as source, psycopg.connect(target_dsn) as target:
        source.execute(_SETTINGS), target.execute(_SETTINGS)
        here = {(schema, name): (kind, names) for _, schema, name, kind, names in _tables(source, schemas)}
        there = {(schema, name): (kind, names) for _, schema, name, kind, names in _tables(target, schemas)}
        found = []
        for path, (kind, names) in here.items():
            told = ".".join(path)
            if told in but:
                continue
            if path not in there:
                if told in known or _count(source, path, kind):
                    found.append(f"{told} is missing at the target")
                continue
            other_kind, others = there[path]
            if told in known and names != others:
                found.append(f"{told} has the columns {names} at the source and {others} at the target")
            both = [name for name in names if name in others]
            ours, theirs = _rows(source, path, kind, both), _rows(target, path, other_kind, both)
            if ours != theirs:
                found.append(f"{told} ({', '.join(both)}): {_shown(ours, theirs)}")
        return found


def contents(dsn: str, table: str | int) -> Contents | None:
    """One table, by its path or its oid; None where there is none."""
    with psycopg.connect(dsn) as connection:
        connection.execute(_SETTINGS)
        if isinstance(table, str):
            row = connection.execute("SELECT to_regclass(%s)::oid", [table]).fetchone()
            table = row[0] if row and row[0] else 0
        for oid, schema, name, kind, names in _tables(connection, (), int(table)):
            rows = _rows(connection, (schema, name), kind, names)
            return Contents(oid=oid, schema=schema, name=name, columns=tuple(names), rows=rows)
    return None


def tell_definitions(dsn: str, schemas: tuple[str, ...]) -> None:
    """Write a row of each table as it is, where the table lets itself be updated."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for oid, schema, name, _, columns in _tables(connection, schemas):
            sent = [sql.Identifier(column) for (column,) in connection.execute(_SENT, [oid, columns])]
            if not sent:
                continue
            update = sql.SQL("UPDATE {0} SET {1} = {1} WHERE ctid = (SELECT min(ctid) FROM {0})")
            # Of a table that takes no updates; one with a key takes them.
            insert = sql.SQL("INSERT INTO {0} ({2}) SELECT {2} FROM {0} LIMIT 1")
            for query in (update, insert):
                with suppress(psycopg.Error):
                    table = sql.Identifier(schema, name)
                    connection.execute(query.format(table, sent[0], sql.SQL(", ").join(sent)))
                    break


def _tables(connection: psycopg.Connection[Any], schemas: tuple[str, ...], oid: int | None = None) -> list[Any]:
    return connection.execute(_TABLES, [list(schemas), oid]).fetchall()


def _from(path: tuple[str, str], kind: str) -> sql.Composed:
    return sql.SQL("{} {}").format(sql.SQL("ONLY" if kind == "r" else ""), sql.Identifier(*path))


def _count(connection: psycopg.Connection[Any], path: tuple[str, str], kind: str) -> int:
    row = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(_from(path, kind))).fetchone()
    return int(row[0]) if row else 0


def _rows(connection: psycopg.Connection[Any], path: tuple[str, str], kind: str, columns: list[str]) -> Rows:
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    query = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(listed, _from(path, kind))
    with connection.cursor().copy(query) as copy:
        return Counter(b"".join(copy).decode().splitlines())


def _shown(ours: Rows, theirs: Rows) -> str:
    missing, surplus = ours - theirs, theirs - ours
    first = [f"missing {row[:90]!r}" for row in list(missing)[:2]] + [
        f"surplus {row[:90]!r}" for row in list(surplus)[:2]
    ]
    return f"{sum(ours.values())} rows, {sum(theirs.values())} at the target; {'; '.join(first)}"
