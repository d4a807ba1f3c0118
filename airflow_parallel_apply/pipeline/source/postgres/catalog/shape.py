"""The shape of whole tables in the source's catalog of now: `Shape`, and the sighting that is kept of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg

from airflow_parallel_apply.pipeline.model.sighting import Sighting
from airflow_parallel_apply.pipeline.source.postgres.ddl_capture import captured_commands
from airflow_parallel_apply.pipeline.source.postgres.session import Session, statement
from airflow_parallel_apply.postgres.arrays import numbers
from airflow_parallel_apply.postgres.generated_text import definition_of

STORED: Final = "s"
VIRTUAL: Final = "v"
_RENAMES_SCHEMAS: Final = "ALTER SCHEMA"


@dataclass(frozen=True, slots=True, kw_only=True)
class LivingColumn:
    """`generated`: empty, "s" (stored) or "v" (virtual). `expression`: what computes it; None where not known.
    `version`: the `xmin` of its entry in the catalog; 0 where not known.
    """

    name: str
    type_name: str
    generated: str
    expression: str | None = None
    version: int = 0

    @property
    def definition(self) -> str:
        """The definition of a generated column, as ADD COLUMN takes it; empty if its expression is not known."""
        if not self.expression:
            return ""
        return definition_of(self.type_name, self.expression, is_virtual=self.generated != STORED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One table. `leaves_are_full`: all its parts that hold rows send whole old rows. `columns` by number; the other
    fields as in `Sighting`.
    """

    oid: int
    is_partitioned: bool
    leaves_are_full: bool
    last_number: int
    columns: Mapping[int, LivingColumn]
    key: tuple[int, tuple[int, ...]] | None
    rewritten: tuple[tuple[int, int], ...]
    table: tuple[str, str] | None = None

    @property
    def has_versions(self) -> bool:
        """False of what an event trigger of an earlier version sent."""
        return all(column.version for column in self.columns.values())

    def files_of(self, parts: Iterable[int]) -> dict[int, int]:
        """The files of these parts; one that was never rewritten has the number of the part."""
        rewritten = dict(self.rewritten)
        return {part: rewritten.get(part, part) for part in parts}

    @property
    def plain(self) -> frozenset[int]:
        """The columns that every relation message names."""
        return frozenset(number for number, column in self.columns.items() if not column.generated)

    @property
    def stored(self) -> frozenset[int]:
        """Stored generated columns, which are named where the publication says so."""
        return frozenset(number for number, column in self.columns.items() if column.generated == STORED)

    @classmethod
    def of_what_is_gone(cls, oid: int, *, is_full: bool) -> Shape:
        """A table that was dropped since: nothing of it is known but what its messages said."""
        return cls(
            oid=oid,
            is_partitioned=False,
            leaves_are_full=is_full,
            last_number=0,
            columns={},
            key=None,
            rewritten=(),
        )

    def sighting(self, lsn: int, *, is_told: bool = False) -> Sighting:
        """`lsn`: where the WAL ended after the catalog was read, or where a snapshot begins that it was read in.
        `is_told`: the source tells of each later change.
        """
        columns = sorted(self.columns.items())
        # Most tables compute no column and have lost none, and of thousands each step counts.
        computed = [(number, column) for number, column in columns if column.generated]
        virtual = {number for number, column in computed if column.generated != STORED}
        is_whole = len(columns) == self.last_number and not virtual
        return Sighting(
            oid=self.oid,
            offset=lsn,
            last_number=self.last_number,
            absent=() if is_whole else tuple(sorted({*range(1, self.last_number + 1)} - self.columns.keys() | virtual)),
            generated=tuple(number for number, column in computed if column.generated == STORED),
            key=self.key,
            rewritten=self.rewritten,
            types=tuple((number, column.type_name) for number, column in columns),
            names=tuple((number, column.name) for number, column in columns) if is_told else (),
            expressions=tuple((number, column.definition) for number, column in computed if column.definition),
            table=self.table,
        )


def shapes(connection: psycopg.Connection[Any], oids: Sequence[int]) -> Mapping[int, Shape]:
    """By oid, without tables that are gone. Errors: psycopg's own."""
    # Row by row: of thousands of tables what JSON is read into weighs more than what is made of it.
    return {row[0]: shape_of_row(row) for row in connection.execute(statement("shape"), {"oids": numbers(oids)})}


def shape_of_row(row: Sequence[Any]) -> Shape:
    """A table out of a row of `shape.sql`."""
    # An event trigger that an earlier version installed says nothing of the table's name.
    oid, is_partitioned, leaves_are_full, last_number, columns, index, key_columns, rewritten, *name = row
    return Shape(
        oid=oid,
        is_partitioned=is_partitioned,
        leaves_are_full=leaves_are_full,
        last_number=last_number,
        columns={
            number: LivingColumn(
                name=name,
                type_name=type_name,
                generated=generated.strip(),
                # An event trigger that an earlier version installed says nothing of expressions, nor of versions.
                expression=more[0] if more else None,
                version=more[1] if len(more) > 1 else 0,
            )
            for number, name, type_name, generated, *more in columns
        },
        key=(index, tuple(key_columns)) if index is not None else None,
        rewritten=tuple((part, file) for part, file in rewritten or ()),
        table=tuple(name) if name else None,
    )


def published(connection: psycopg.Connection[Any], publication: str) -> list[int]:
    """The oids of a publication's tables. Errors: psycopg's own."""
    found = connection.execute(
        "SELECT r.prrelid::bigint FROM pg_catalog.pg_publication_rel r "
        "JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid WHERE p.pubname = %s",
        [publication],
    )
    return [oid for (oid,) in found]


def look(session: Session, oids: Sequence[int]) -> tuple[tuple[Sighting, Shape], ...]:
    """Tables as they are now. Errors: psycopg's own."""
    is_told, found = shapes_now(session, oids)
    # After the catalog was read: all that it shows lies before.
    row = session.catalog().execute("SELECT (pg_catalog.pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()
    lsn = int(row[0]) if row else 0
    return tuple((shape.sighting(lsn, is_told=is_told), shape) for shape in found.values())


def look_then(connection: psycopg.Connection[Any], oids: Sequence[int], lsn: int) -> tuple[Sighting, ...]:
    """Tables as the snapshot has them that the connection reads. `lsn`: where it begins. Errors: psycopg's own."""
    is_told, found = _told_shapes(connection, oids)
    return tuple(shape.sighting(lsn, is_told=is_told) for shape in found.values())


def shapes_now(session: Session, oids: Sequence[int]) -> tuple[bool, Mapping[int, Shape]]:
    """Tables as they are now, by oid, and whether the source tells of each later change. Errors: psycopg's own."""
    asked = tuple(sorted(oids))
    return session.answer(("shapes", asked), lambda connection: _told_shapes(connection, asked))


def _told_shapes(connection: psycopg.Connection[Any], oids: Sequence[int]) -> tuple[bool, Mapping[int, Shape]]:
    # Before the tables are read: what changes behind it is told.
    told = captured_commands(connection)
    found = shapes(connection, oids)
    if _RENAMES_SCHEMAS not in told:
        # An event trigger that an earlier version installed does not tell when a table's name changes with its schema.
        found = {oid: replace(shape, table=None) for oid, shape in found.items()}
    return bool(told), found
