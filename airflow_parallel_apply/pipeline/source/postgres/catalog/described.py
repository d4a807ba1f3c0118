"""Describes tables as the log keeps them, from relation messages and the catalog: columns, identities, comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import psycopg

from airflow_parallel_apply.pipeline.errors import SourceError
from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.finding import command_line
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.sighting import Sighting
from airflow_parallel_apply.pipeline.source.postgres.catalog.catalog import SourceTable, sends_generated
from airflow_parallel_apply.pipeline.source.postgres.catalog.computed_columns import (
    computed_columns,
    expressions_of_columns,
)
from airflow_parallel_apply.pipeline.source.postgres.catalog.former_keys import had_key_before, is_partial
from airflow_parallel_apply.pipeline.source.postgres.catalog.history import settle_numbers, with_fills
from airflow_parallel_apply.pipeline.source.postgres.catalog.key_kinds import key_kind
from airflow_parallel_apply.pipeline.source.postgres.catalog.shape import STORED, VIRTUAL, LivingColumn, Shape, shapes
from airflow_parallel_apply.pipeline.source.postgres.catalog.value_types import value_type
from airflow_parallel_apply.pipeline.source.postgres.session import statement
from airflow_parallel_apply.pipeline.source.postgres.wire.messages import WireColumn, WireRelation
from airflow_parallel_apply.pipeline.source.postgres.wire.tuples import FollowedTable
from airflow_parallel_apply.pipeline.source.rows import NO_RELATION
from airflow_parallel_apply.postgres.arrays import numbers
from airflow_parallel_apply.postgres.quoting import quoted

_FULL: Final = "f"
_IDENTITIES: Final = {
    "d": ReplicaIdentity.KEY,
    "i": ReplicaIdentity.KEY,
    _FULL: ReplicaIdentity.FULL,
    "n": ReplicaIdentity.NONE,
}
"""By the letter that the catalog and relation messages have."""
_KEPT_COLUMNS: Final = 4096
_FIRST_MADE: Final = 16384
"""The first number of a type that did not come with the server."""
_UNIDENTIFIED_LEAVES: Final = """
SELECT n.nspname::text, c.relname::text
FROM pg_catalog.pg_partition_tree(%s::bigint::oid::regclass) t
JOIN pg_catalog.pg_class c ON c.oid = t.relid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE t.isleaf AND c.relreplident <> 'f'
ORDER BY 1, 2
"""


class Typing(NamedTuple):
    """The type of a column now, and how it is compared; None: a type that is gone."""

    type_name: str | None
    base_type: str | None
    is_enum: bool
    is_deterministic: bool


def describe_now(
    connection: psycopg.Connection[Any],
    publication: str,
    tables: Sequence[SourceTable],
    found: Mapping[int, Shape] | None = None,
) -> tuple[Relation, ...]:
    """The tables' definitions as the catalog has them for this session, without ids, in order. Three statements for any
    number of tables. `found`: their shapes, where those were asked already.
    """
    generated = sends_generated(connection, publication, tables)
    if found is None:
        found = shapes(connection, [table.oid for table in tables])
    arguments = {"oids": numbers(table.oid for table in tables if table.oid in found), "with_generated": generated}
    # Row by row: of thousands of tables what JSON is read into weighs more than what is made of it.
    sent = {
        oid: tuple(_sent_column(*column) for column in columns)
        for oid, columns in connection.execute(statement("attributes"), arguments)
    }
    return tuple(
        _described(
            connection,
            WireRelation(
                oid=table.oid,
                schema=table.schema,
                table=table.table,
                replica_identity=table.replica_identity,
                columns=tuple(column.wire for column in sent.get(table.oid, ())),
            ),
            found[table.oid],
            typings=[column.typing for column in sent.get(table.oid, ())],
            numbers=[column.number for column in sent.get(table.oid, ())],
            had_key=True,
            known=None,
            told=None,
        ).relation
        for table in tables
        if table.oid in found
    )


def describe(
    connection: psycopg.Connection[Any],
    wire: WireRelation,
    shape: Shape | None,
    *,
    seen: Sighting | None = None,
    known: Relation | None = None,
    is_untold: bool = False,
) -> FollowedTable:
    """A relation as the log keeps it, without its id. `shape`: its table as it is now; None where it is gone. `seen`:
    the last that is known of the table from before the message. `known`: the definition that the log has of it.
    `is_untold`: what `seen` says of computed columns may have changed, though the source told nothing of it.

    Under REPLICA IDENTITY FULL every column identifies a row to the server; to us those of a key do, where there is one
    and was then (see `shape.sql`). Collations and keys' types are those of now: the slot's past may have had others,
    and then another relation message follows.
    """
    arguments = {
        "oid": wire.oid,
        "types": [column.type_oid for column in wire.columns],
        "modifiers": [column.type_modifier for column in wire.columns],
    }
    rows = connection.execute(statement("columns"), arguments).fetchall()
    typings = [Typing(name, base, is_enum, is_deterministic=not folded) for name, base, is_enum, folded, *_ in rows]
    shape = shape or Shape.of_what_is_gone(wire.oid, is_full=wire.replica_identity == _FULL)
    if seen is not None and known is not None and any((one.number or 0) > seen.last_number for one in known.columns):
        # A copy has come in between, of which nothing was told.
        seen = replace(seen, names=())
    numbers = settle_numbers(_named(wire, typings), shape, seen, known)
    # A column whose type is gone is gone as well by now, or has another one: until then it is what the log says.
    logged = {} if known is None else {column.number: column.type_name for column in known.columns}
    typings = [
        typing._replace(
            type_name=typing.type_name or (logged.get(number) if number is not None else None),
            is_deterministic=not folded if number is None else number not in folded,
        )
        for typing, number, (*_, folded, _, _) in zip(typings, numbers, rows, strict=True)
    ]
    *_, generated, indexes = rows[0] if rows else ((), ())
    if is_partial(wire, numbers, generated, indexes, shape, seen, known):
        wire = replace(wire, columns=tuple(replace(column, key=False) for column in wire.columns))
    had_key = had_key_before(shape, seen, known)
    told = None if is_untold else seen
    then = _as_told(shape, told) if told is not None and told.names and shape.columns else shape
    table = _described(
        connection, wire, then, typings=typings, numbers=numbers, had_key=had_key, known=known, told=told
    )
    return replace(table, relation=with_fills(connection, table.relation, shape, seen, known))


def _as_told(shape: Shape, seen: Sighting) -> Shape:
    """A table as it is now, with the generated columns that it had at a sighting after which the source reports each
    change: no message names them. The log has the expressions of those that are gone by now.
    """
    types, columns = dict(seen.types), {number: one for number, one in shape.columns.items() if not one.generated}
    for number, name in seen.names:
        if number in seen.generated or number in seen.absent:
            living = shape.columns.get(number)
            if living is not None and living.generated:
                columns[number] = replace(living, name=name)
            else:
                generated = STORED if number in seen.generated else VIRTUAL
                columns[number] = LivingColumn(name=name, type_name=types[number], generated=generated)
    return replace(shape, columns=dict(sorted(columns.items())))


def numbered(table: FollowedTable, relation_id: int) -> FollowedTable:
    """The same with its id in the log."""
    return replace(table, relation=replace(table.relation, relation_id=relation_id))


class _SentColumn(NamedTuple):
    wire: WireColumn
    typing: Typing
    number: int


@lru_cache(maxsize=_KEPT_COLUMNS)
def _sent_column(number: int, name: str, type_oid: int, type_modifier: int, key: bool, *typing: Any) -> _SentColumn:
    """The column of a row of `attributes.sql`. Thousands of tables have few different ones."""
    wire = WireColumn(name=name, type_oid=type_oid, type_modifier=type_modifier, key=key)
    return _SentColumn(wire, Typing(*typing), number)


def _described(
    connection: psycopg.Connection[Any],
    wire: WireRelation,
    shape: Shape,
    *,
    typings: Sequence[Typing],
    numbers: Sequence[int | None],
    had_key: bool,
    known: Relation | None,
    told: Sighting | None,
) -> FollowedTable:
    """A relation, without what older rows have in new columns. `had_key`: whether the index that tells rows apart now
    did so before the message, too.
    """
    named, identity = _named(wire, typings), wire.replica_identity
    if shape.is_partitioned and shape.leaves_are_full and not any(column.key for column in wire.columns):
        # What is sent is for each partition to say; the root says how the message is marked.
        identity = _FULL
    # Rows of before a key may have had equals. By all its values each is told apart, whatever the key is.
    has_key = shape.key is not None and had_key and set(shape.key[1]) <= set(numbers)
    key = set(shape.key[1]) if shape.key is not None and has_key else set()
    is_key = tuple(
        number in key if identity == _FULL else column.key for number, column in zip(numbers, wire.columns, strict=True)
    )
    # An ordinary table's message says itself what was sent, whatever its identity is by now.
    if identity == _FULL and not any(is_key) and shape.is_partitioned and not shape.leaves_are_full:
        raise _unidentified(connection, wire, shape)
    computed = computed_columns(shape, named, numbers, known)
    columns = _columns(
        tuple(named),
        tuple(typings),
        tuple(numbers),
        is_key,
        tuple(_is_generated(shape, number) for number in numbers),
        tuple(column.type_oid for column in wire.columns),
        has_numbers=shape.last_number > 0,
    )
    relation = Relation(
        relation_id=NO_RELATION,
        schema=wire.schema,
        table=wire.table,
        replica_identity=_IDENTITIES[identity],
        columns=columns,
        canonical=all(column.kind is not KeyKind.NOT_CANONICAL for column in columns if column.key),
        # Of a table that is gone nobody says what it computed.
        computed=tuple(column.name for column in computed.values()) if shape.columns else None,
        computed_numbers=tuple(computed) if shape.columns else None,
        expressions=expressions_of_columns(shape, named, numbers, known, told),
        oid=wire.oid,
    )
    return FollowedTable(relation=relation, is_partitioned=shape.is_partitioned)


@lru_cache(maxsize=_KEPT_COLUMNS)
def _columns(
    named: Sequence[tuple[str, str]],
    typings: Sequence[Typing],
    numbers: Sequence[int | None],
    is_key: Sequence[bool],
    is_generated: Sequence[bool | None],
    type_oids: Sequence[int],
    *,
    has_numbers: bool,
) -> tuple[Column, ...]:
    """The columns of a relation. Thousands of tables have few different lists of them."""
    return tuple(
        Column(
            name=name,
            type_name=type_name,
            # What is no part of a key is compared by nothing but its text, whatever its collation.
            kind=key_kind(
                typing.base_type or "",
                is_enum=typing.is_enum,
                is_deterministic=typing.is_deterministic or not in_key,
            ),
            key=in_key,
            number=number,
            is_unclear=number is None and has_numbers,
            generated=generated,
            value=value_type(type_name, typing.base_type or "", is_enum=typing.is_enum),
            type_number=type_oid if type_oid >= _FIRST_MADE else None,
        )
        for (name, type_name), typing, number, in_key, generated, type_oid in zip(
            named, typings, numbers, is_key, is_generated, type_oids, strict=True
        )
    )


def _named(wire: WireRelation, typings: Sequence[Typing]) -> list[tuple[str, str]]:
    """The columns' names and types."""
    return [
        (column.name, _type_name(wire, column, row.type_name))
        for column, row in zip(wire.columns, typings, strict=True)
    ]


def _type_name(wire: WireRelation, column: WireColumn, found: str | None) -> str:
    name = found or column.type_name
    if name is None:
        table = f"{wire.schema}.{wire.table}"
        raise SourceError(
            "a column's type is gone from the source's catalog",
            op="capture",
            table=table,
            column=column.name,
            hint=f"Column and type came and went since the last capture. Run `{command_line('recopy', [table])}`: "
            "it copies the table as it is now, and the next run goes on from there.",
        )
    return name


def _unidentified(connection: psycopg.Connection[Any], wire: WireRelation, shape: Shape) -> SourceError:
    """The error of a partitioned table whose older rows may have been sent in part. One that has a key by now is to be
    known by that from now on.
    """
    name = f"{wire.schema}.{wire.table}"
    alter = ""
    if shape.key is None:
        leaves = connection.execute(_UNIDENTIFIED_LEAVES, [wire.oid]).fetchall()
        statements = "; ".join(f"ALTER TABLE {quoted(*leaf)} REPLICA IDENTITY FULL" for leaf in leaves)
        alter = f"Run {statements} at the source, or give the table a primary key. Then "
    return SourceError(
        "the partitioned table has REPLICA IDENTITY FULL and no key, and not all its partitions have it too",
        op="capture",
        table=name,
        hint=f"{alter}`{command_line('recopy', [name])}` copies the table anew, if the pipeline has "
        "begun: rows that changed before may have been sent in part. Then run again.",
    )


def _is_generated(shape: Shape, number: int | None) -> bool | None:
    """True if a column is generated, and therefore always was. One that is not may have been: its values came as
    values.
    """
    found = shape.columns.get(number) if number is not None else None
    return bool(found.generated) if found is not None else None
