"""Tables between their registration and now: `history_of`. An event trigger of the source sends each step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import psycopg

from airflow_parallel_apply.pipeline.model.sent_ddl import renames_type
from airflow_parallel_apply.pipeline.source.postgres.catalog.shape import Shape
from airflow_parallel_apply.pipeline.source.postgres.ddl.sent_sightings import OF_A_SCHEMA
from airflow_parallel_apply.pipeline.source.postgres.ddl.signed_messages import SignedMessage
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import RegisteredTable

_COLUMNS: Final = """
WITH RECURSIVE above (number, name, oid, type_oid, is_inherited) AS (
    SELECT a.attnum, a.attname, c.oid, c.reloftype, a.attinhcount > 0
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
    WHERE c.oid = %(oid)s::bigint::oid AND a.attnum > 0
    UNION
    SELECT above.number, a.attname, c.oid, c.reloftype, a.attinhcount > 0
    FROM above
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = above.oid
    JOIN pg_catalog.pg_class c ON c.oid = i.inhparent
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = above.name
)
SELECT above.number::int, own.attname::text, pg_catalog.format_type(own.atttypid, own.atttypmod), own.atttypid::bigint,
    max(CASE WHEN above.is_inherited THEN 0 ELSE coalesce(t.oid, c.oid)::bigint END),
    array_agg(ARRAY[n.nspname::text, coalesce(t.typname, c.relname)::text])
FROM above
JOIN pg_catalog.pg_class c ON c.oid = above.oid
LEFT JOIN pg_catalog.pg_type t ON t.oid = above.type_oid
JOIN pg_catalog.pg_namespace n ON n.oid = coalesce(t.typnamespace, c.relnamespace)
JOIN pg_catalog.pg_attribute own ON own.attrelid = %(oid)s::bigint::oid AND own.attnum = above.number
GROUP BY above.number, own.attname, own.atttypid, own.atttypmod
ORDER BY above.number
"""
"""A table's columns: number, name, type and its number, where statements alter it, and what they may call that: the
table, one that it inherits the column from, or the type that such a table is of.
"""

Pair = tuple[RegisteredTable, RegisteredTable]
"""A table as it is registered, and as it is now."""


Renames = Callable[[str, str], bool]
"""True if DDL that was sent gives a type another name; a column whose table was not rewritten meanwhile has the same
type then, which is not told as an alteration.
"""

Names = frozenset[tuple[str, str]]
"""The names that statements may have for a table, or for the type that it is of: `schema` and `name`."""


class Alteration(NamedTuple):
    """A change of a column, in all tables that inherit it, by the transaction that the catalog calls `writers`.
    `place`: the table, or the type of tables, that statements alter.
    """

    writers: frozenset[int]
    place: int
    column: str


@dataclass(frozen=True, slots=True)
class Look:
    """A table at a moment: its files by part, and by number its columns' versions and, unless it is a registered one,
    their names. Of one that was sent, `types`: its columns' types, `writers`: what the catalog calls the transaction.
    """

    files: Mapping[int, int]
    versions: Mapping[int, int]
    names: Mapping[int, str] = field(default_factory=dict)
    types: Mapping[int, str] = field(default_factory=dict)
    writers: frozenset[int] = frozenset()

    @classmethod
    def at(cls, table: RegisteredTable) -> Look:
        """A registered one."""
        versions = {number: version for number, version in enumerate(table.versions, 1) if version}
        return cls(files=table.files, versions=versions)

    def touched(self, now: Look) -> frozenset[int]:
        """The columns that were altered or made since. One that was made may have been altered after that, which a
        message shows; else what older rows hold in it is not known, which stops a run as well.
        """
        return frozenset(number for number, version in now.versions.items() if self.versions.get(number) != version)

    def altered(self, now: Look) -> frozenset[int]:
        """The columns that were there before and have other versions now."""
        return frozenset(
            number for number, version in now.versions.items() if self.versions.get(number, version) != version
        )

    def retyped(self, now: Look) -> frozenset[int]:
        """The columns that are known to have other types now."""
        return frozenset(number for number, name in now.types.items() if self.types.get(number, name) != name)

    def rewritten(self, now: Look) -> frozenset[int]:
        """The parts that were there before and have other files now."""
        return frozenset(part for part, file in now.files.items() if self.files.get(part, file) != file)


class Altered(NamedTuple):
    """An alteration as a table shows it: of its column `number`, by a statement that may have had a USING if
    `is_doubted`. `type_name`: the type that the column has behind it. `step`: the statement's place among those of
    the table. `is_beside`: it is known to be one statement, and to have given this column no other type: a rewrite also
    forgets the default that rows from before a column have.
    """

    alteration: Alteration
    number: int
    is_doubted: bool
    type_name: str
    step: int
    is_beside: bool


@dataclass(slots=True)
class History:
    """The steps that a table with these `columns` went through. `shapes`: what it was told to be, by transactions that
    the catalog calls `tellers`. `alterations`: of its columns, by statements that call it by one of `names`. `called`:
    by number what its columns were called. `has_names`: all columns that a statement altered which may have had a USING
    are there. `of_renamed_types`: columns that nothing has altered since their table was told, and whose types have
    other names by now. `is_renamed`: see `Renames`.
    """

    names: Names
    columns: Mapping[int, PlacedColumn]
    shapes: Sequence[Shape]
    tellers: Sequence[frozenset[int]]
    is_renamed: Renames
    alterations: list[Altered] = field(default_factory=list)
    called: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    has_names: bool = True
    of_renamed_types: frozenset[int] = frozenset()

    def names_of(self, number: int) -> frozenset[str]:
        """The names that a column had, and no other one."""
        others = (names for one, names in self.called.items() if one != number)
        return frozenset(self.called[number]).difference(*others)


def history_of(connection: psycopg.Connection[Any], pair: Pair, messages: Sequence[SignedMessage]) -> History:
    """Return what the messages of the slot tell of a table since its registration, and the catalog of its end. Errors:
    psycopg's own.
    """
    before, now = (Look.at(table) for table in pair)
    columns = _columns(connection, pair[1].oid)
    names = Names({(pair[0].schema, pair[0].table)}).union(*(column.tables for column in columns.values()))
    later = _later(messages, pair[0].oid, before)
    told = [
        (one.shape, one.writers)
        for one in later
        if one.shape is not None and one.shape.oid == pair[0].oid and one.is_exact
    ]
    shapes = [shape for shape, _ in told]
    of_renamed_types = _of_renamed_types(columns, shapes, now)

    def is_renamed(before: str, now: str) -> bool:
        return any(renames_type(message.ddl, before, now) for message in later)

    tellers = [writers for _, writers in told]
    found = History(names, columns, shapes, tellers, is_renamed, of_renamed_types=of_renamed_types)
    now = replace(now, names={number: column.name for number, column in columns.items()})
    for place, step in enumerate(_steps(pair[0].oid, before, now, later, is_renamed)):
        for number, name in step.look.names.items():
            found.called[number].add(name)
        if step.is_doubted:
            found.has_names &= bool(step.columns) and step.columns <= step.look.names.keys() & columns.keys()
        for number in step.columns & step.look.names.keys() & columns.keys():
            writers = step.look.writers or frozenset({step.look.versions[number]})
            whole = next((message.writers for message in messages if message.writers & writers), writers)
            alteration = Alteration(whole, columns[number].place, step.look.names[number])
            type_name = step.look.types.get(number, columns[number].type_name)
            is_beside = step.is_one and number not in step.retyped
            found.alterations.append(Altered(alteration, number, step.is_doubted, type_name, place, is_beside))
    return found


def _of_renamed_types(columns: Mapping[int, PlacedColumn], shapes: Sequence[Shape], now: Look) -> frozenset[int]:
    told = {number: column for shape in shapes for number, column in shape.columns.items()}
    return frozenset(
        number
        for number, column in columns.items()
        if number in told
        and told[number].version == now.versions.get(number)
        and told[number].type_name != column.type_name
        and OF_A_SCHEMA in column.type_name
    )


def _later(messages: Sequence[SignedMessage], oid: int, registered: Look) -> Sequence[SignedMessage]:
    """Those of after a table's registration. The slot may hold earlier ones: behind them comes one with the columns'
    versions and the files of the registration, if no other command has changed these. Computed columns have no versions
    there: what is done to them leaves those of the others as they are.
    """
    begins = {
        number: message.shape.files_of(registered.files)
        for number, message in enumerate(messages)
        if message.shape is not None and message.shape.oid == oid and _versions(message.shape) == registered.versions
    }
    same = [number for number, files in begins.items() if files == registered.files]
    return messages[same[-1] if same else min(begins, default=0) :]


def _versions(shape: Shape) -> dict[int, int]:
    return {number: column.version for number, column in shape.columns.items() if not column.generated}


class _Step(NamedTuple):
    """A statement that altered columns; `is_doubted` if it may have had a USING. `look`: what the table had become.
    `retyped`: the columns that are known to have got another type. `is_one`: it is known to be one statement alone.
    """

    columns: frozenset[int]
    is_doubted: bool
    look: Look
    retyped: frozenset[int] = frozenset()
    is_one: bool = False


def _steps(
    oid: int, before: Look, now: Look, messages: Sequence[SignedMessage], is_renamed: Renames
) -> Iterator[_Step]:
    """The way from one look to the other."""
    plain: dict[int, list[tuple[int, bool]]] = {}
    last = before
    for message in messages:
        if message.part is not None:
            plain.setdefault(message.part, []).append((message.file, message.is_plain))
        elif message.shape is not None and message.shape.oid == oid and message.shape.has_versions:
            columns = {number: one for number, one in message.shape.columns.items() if not one.generated}
            sent = Look(
                files=message.shape.files_of(last.files),
                versions=_versions(message.shape),
                names={number: column.name for number, column in columns.items()},
                types={number: column.type_name for number, column in columns.items() if message.is_exact},
                writers=message.writers,
            )
            yield _step(last, sent, plain, is_renamed)
            last = sent
            plain.clear()
    yield _step(last, now, {}, is_renamed)


def _step(before: Look, now: Look, plain: Mapping[int, Sequence[tuple[int, bool]]], is_renamed: Renames) -> _Step:
    altered, rewritten = before.altered(now), before.rewritten(now)
    # What one transaction does to a column may have one version.
    is_one_transaction = bool(before.writers & now.writers)
    if not rewritten or not (altered or is_one_transaction):
        retyped = before.retyped(now)
        return _Step(frozenset(one for one in retyped if not is_renamed(before.types[one], now.types[one])), False, now)
    if all(plain.get(part) == [(before.files[part], True)] for part in rewritten):
        return _Step(before.retyped(now) | altered, False, now)
    if not altered:
        return _Step(frozenset(number for number, one in now.versions.items() if one in now.writers), True, now)
    is_one = all(plain.get(part) == [(before.files[part], False)] for part in rewritten)
    return _Step(altered, True, now, before.retyped(now), is_one)


class PlacedColumn(NamedTuple):
    """`type_number`: the type's, be it built in or not. `place`: where statements alter it. `tables`: what these may
    call that.
    """

    name: str
    type_name: str
    type_number: int
    place: int
    tables: Names


def _columns(connection: psycopg.Connection[Any], oid: int) -> dict[int, PlacedColumn]:
    """A table's columns by number."""
    rows = connection.execute(_COLUMNS, {"oid": oid}).fetchall()
    return {
        number: PlacedColumn(
            name, type_name, type_number, place, frozenset((schema, table) for schema, table in tables)
        )
        for number, name, type_name, type_number, place, tables in rows
    }
