"""Reads from the source's catalog which tables can be followed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.source.postgres.catalog.own_rows import Name, names_now, renamed
from airflow_parallel_apply.pipeline.source.postgres.session import Session, statement
from airflow_parallel_apply.postgres.filled import filled


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A table that can be followed."""

    oid: int
    schema: str
    table: str
    replica_identity: str
    has_primary_key: bool
    is_partitioned: bool
    is_owner: bool
    can_select: bool
    is_published: bool
    generated: str
    """The generated columns that the server demands of a publication of this table: "s", the stored ones; "v", the
    virtual ones, too, which is impossible; else empty.
    """

    @property
    def name(self) -> str:
        """`schema.table`, for people."""
        return f"{self.schema}.{self.table}"

    @property
    def identifier(self) -> sql.Identifier:
        """Quoted, for SQL."""
        return sql.Identifier(self.schema, self.table)

    @property
    def own_rows(self) -> sql.Composed:
        """For SQL, without the rows of tables that inherit from it; a partitioned table's are its partitions'."""
        return sql.SQL("{}" if self.is_partitioned else "ONLY {}").format(self.identifier)

    def named(self, name: Name) -> SourceTable:
        """The same under another name."""
        return replace(self, schema=name[0], table=name[1])

    def rows_then(self, parts: Iterable[int]) -> sql.Composed:
        """For SQL, its own rows at a snapshot's moment. `parts`: the oids of its partitions then. A query has the rows
        of those that were attached since as well, and they may be detached again before anybody looks.
        """
        if not self.is_partitioned:
            return self.own_rows
        return sql.SQL("{} WHERE tableoid = ANY ({}::oid[])").format(self.identifier, sql.Literal([*parts]))


def list_tables(connection: psycopg.Connection[Any], publication: str) -> tuple[SourceTable, ...]:
    """Every table that can be followed or is published, by name."""
    rows = connection.execute(statement("tables"), {"publication": publication}).fetchall()
    return tuple(
        SourceTable(
            oid=oid,
            schema=schema,
            table=table,
            replica_identity=identity if isinstance(identity, str) else identity.decode(),
            has_primary_key=has_primary_key,
            is_partitioned=is_partitioned,
            is_owner=is_owner,
            can_select=can_select,
            is_published=is_published,
            generated=generated,
        )
        for (
            oid,
            schema,
            table,
            identity,
            has_primary_key,
            is_partitioned,
            is_owner,
            can_select,
            is_published,
            generated,
        ) in rows
    )


def tables_now(session: Session, publication: str) -> tuple[SourceTable, ...]:
    """As `list_tables`, of this moment. Errors: psycopg's own."""
    return session.answer(("tables", publication), lambda connection: list_tables(connection, publication))


def matching(tables: tuple[SourceTable, ...], patterns: TablePatterns) -> tuple[SourceTable, ...]:
    """Those that the patterns name."""
    return tuple(table for table in tables if patterns.matches(table.schema, table.table))


def named_now(connection: psycopg.Connection[Any], tables: Sequence[SourceTable], *, op: str) -> list[SourceTable]:
    """The same under the names that they have now. Errors: `SourceChanged` for one that is gone; psycopg's own."""
    now = names_now(connection, [table.oid for table in tables])
    gone = [table.name for table in tables if table.oid not in now]
    if gone:
        raise renamed(gone, op=op)
    return [table.named(now[table.oid]) for table in tables]


def with_rows(connection: psycopg.Connection[Any], tables: Sequence[SourceTable]) -> list[str]:
    """The names of those that have a row that the connection's transaction sees. Errors: `SourceChanged`; psycopg's."""
    now = named_now(connection, tables, op="prepare")
    found = filled(connection, [table.own_rows for table in now])
    return [table.name for table, has_rows in zip(tables, found, strict=True) if has_rows]


def sends_generated(connection: psycopg.Connection[Any], publication: str, followed: Sequence[SourceTable]) -> bool:
    """True if stored generated columns of all its tables are sent, or will be once the publication is there."""
    found = connection.execute(
        "SELECT coalesce(to_jsonb(p) ->> 'pubgencols', 'n') = 's' FROM pg_catalog.pg_publication p WHERE pubname = %s",
        [publication],
    ).fetchone()
    return any(table.generated for table in followed) or bool(found and found[0])
