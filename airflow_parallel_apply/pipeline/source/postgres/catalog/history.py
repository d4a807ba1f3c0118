"""Proves facts about a relation message's columns at its own moment: their numbers, and what older rows hold in them.

The catalog is asked later. Its answer counts for the message's moment only if nothing can have happened in between, by
the last sighting before the message (`pipeline/model/sighting.py`) and by the log's last definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.sighting import Sighting
from airflow_parallel_apply.pipeline.source.postgres.catalog.numbering import Moment, settle
from airflow_parallel_apply.pipeline.source.postgres.catalog.own_rows import asked
from airflow_parallel_apply.pipeline.source.postgres.catalog.retyping import takes_rewrite
from airflow_parallel_apply.pipeline.source.postgres.catalog.shape import Shape, look
from airflow_parallel_apply.pipeline.source.postgres.session import Session, statement

NULL: Final = "NULL"


def settle_numbers(
    columns: Sequence[tuple[str, str]], shape: Shape, seen: Sighting | None, known: Relation | None
) -> tuple[int | None, ...]:
    """The numbers of columns by name and type, None where they cannot be told."""
    if seen is not None and (told := _told_numbers(columns, seen)):
        return told
    earlier, had = [], {number: [column.type_name] for number, column in shape.columns.items()}
    numbers = _numbers(known)
    if known is not None and numbers:
        stored = shape.stored | (frozenset(seen.generated) if seen is not None else frozenset())
        earlier.append(Moment(present=frozenset(numbers) - stored, perhaps=stored, last=max(numbers)))
        for column, number in zip(known.columns, numbers, strict=True):
            had[number] = [*had.get(number, ()), column.type_name]
    # No column of a table whose rows have their old file can have been of a type that takes a new one. Parts that were
    # made since have theirs from the start.
    is_kept = False
    if seen is not None:
        earlier.append(Moment(present=seen.numbers, perhaps=frozenset(seen.generated), last=seen.last_number))
        is_kept = not shape.is_partitioned and _is_kept(shape, seen)
        for number, type_name in seen.types:
            had[number] = [type_name, *(one.type_name for one in (shape.columns.get(number),) if one is not None)]
    now = Moment(present=shape.plain, perhaps=shape.stored, last=shape.last_number)
    return settle(
        [type_name for _, type_name in columns],
        earlier=earlier,
        now=now,
        can_be=lambda number, type_name: (
            not is_kept or not any(takes_rewrite(one, type_name) for one in had.get(number, ()))
        ),
    )


def _is_kept(shape: Shape, seen: Sighting) -> bool:
    """True if every part of the table has the file that it had."""
    files = dict(seen.rewritten)
    return all(files.get(part, part) == file for part, file in shape.rewritten)


def _told_numbers(columns: Sequence[tuple[str, str]], seen: Sighting) -> tuple[int, ...]:
    """The numbers of columns that are exactly those of a sighting, where the source had told of any change since."""
    types = dict(seen.types)
    for numbers in (seen.numbers, seen.numbers | {*seen.generated}):
        told = [(number, name) for number, name in seen.names if number in numbers]
        if told and [(name, types.get(number)) for number, name in told] == [*columns]:
            return tuple(number for number, _ in told)
    return ()


def look_again(
    session: Session, oids: Sequence[int], earlier: Sequence[Sighting], skipped: Mapping[int, int]
) -> tuple[Sighting, ...]:
    """Sightings of tables as they are now, with what is proven by the earlier ones of columns made since. `skipped`: as
    a registration has it.
    """
    last = {sighting.oid: sighting for sighting in earlier}
    made = []
    for sighting, shape in look(session, oids):
        before = knowing(last.get(sighting.oid), skipped)
        new = new_numbers(shape, before)
        proven = proven_fills(session.catalog(), shape, new, before) if new else {}
        made.append(with_proven(sighting, shape, proven, before))
    return tuple(made)


def knowing(seen: Sighting | None, skipped: Mapping[int, int]) -> Sighting | None:
    """A sighting without what it tells of older rows that a person answers for. `skipped`: as a registration has it."""
    return seen if seen is None or seen.offset >= skipped.get(seen.oid, 0) else replace(seen, fills=())


def new_numbers(shape: Shape, before: Sighting | None) -> list[int]:
    """The columns that were made since a sighting; none where there is none."""
    return [number for number in shape.plain if before is not None and number > before.last_number]


def with_proven(sighting: Sighting, shape: Shape, proven: Mapping[int, str], before: Sighting | None) -> Sighting:
    """A sighting with what is known of older rows, now and by the one before it."""
    kept = before.fills if before is not None else ()
    fills = {
        number: (type_name, fill)
        for number, type_name, fill in kept
        if number in shape.plain and shape.columns[number].type_name == type_name
    }
    for number, fill in proven.items():
        fills[number] = (shape.columns[number].type_name, fill)
    return (
        sighting
        if not fills
        else replace(sighting, fills=tuple((number, *fill) for number, fill in sorted(fills.items())))
    )


def proven_fills(
    connection: psycopg.Connection[Any], shape: Shape, numbers: Sequence[int], seen: Sighting | None
) -> dict[int, str]:
    """The values that rows older than some columns hold in them, by the columns' numbers, as far as the catalog proves
    it.

    A value that all of them share is kept in the catalog until the table is rewritten. Where none is kept, and no part
    of the table was rewritten since before the column was made, it is NULL; a default with a value for each row, and an
    identity, rewrite all of it.
    """
    rows = connection.execute(statement("fills"), {"oid": shape.oid, "numbers": list(numbers)}).fetchall()
    return fills_of_rows(rows, numbers, seen)


def fills_of_rows(rows: Iterable[Sequence[Any]], numbers: Sequence[int], seen: Sighting | None) -> dict[int, str]:
    """The same, out of the rows of `fills.sql`."""
    parts: dict[int, list[tuple[int, int, str | None]]] = {number: [] for number in numbers}
    for number, part, file, value in rows:
        if number in parts:
            parts[number].append((part, file, value))
    files = dict(seen.rewritten) if seen is not None else {}
    proven = {}
    for number, held in parts.items():
        values = {value for _, _, value in held if value is not None}
        is_new = seen is not None and number > seen.last_number
        untouched = all(value is not None or file in (part, files.get(part)) for part, file, value in held)
        if len(values) == 1 and (all(value is not None for _, _, value in held) or (is_new and untouched)):
            proven[number] = values.pop()
        elif not values and is_new and untouched:
            proven[number] = NULL
    return proven


def with_fills(
    connection: psycopg.Connection[Any],
    relation: Relation,
    shape: Shape,
    seen: Sighting | None,
    known: Relation | None,
) -> Relation:
    """The relation with what rows older than a column hold in it, of the columns that the log did not have before.

    Beside what is proven it is NULL where no row has a value now: what had one since is on its way.
    """
    before = set(_numbers(known))
    new = [one.number for one in relation.columns if one.number is not None and one.number not in before]
    if known is None or not new:
        return relation
    proven = proven_fills(connection, shape, new, seen)
    kept = {(number, type_name): fill for number, type_name, fill in (seen.fills if seen is not None else ())}
    # What rewrote the table may have taken values away.
    is_kept = seen is None or _is_kept(shape, seen)

    def fill(number: int, type_name: str) -> str | None:
        if (number, type_name) in kept:
            return kept[number, type_name]
        living = shape.columns.get(number)
        if living is None:
            # It has left again, with all its values. By them rows without a key are told apart.
            return None if relation.by_image else NULL
        if living.type_name == type_name and number in proven:
            return proven[number]
        return NULL if is_kept and _has_no_value(connection, shape, living.name) else None

    return replace(
        relation,
        columns=tuple(
            replace(one, fill=fill(one.number, one.type_name)) if one.number is not None and one.number in new else one
            for one in relation.columns
        ),
    )


def _numbers(known: Relation | None) -> tuple[int, ...]:
    """The numbers of a definition's columns; none if one of them is not known."""
    found = tuple(one.number for one in known.columns if one.number is not None) if known is not None else ()
    return found if known is not None and len(found) == len(known.columns) else ()


def _has_no_value(connection: psycopg.Connection[Any], shape: Shape, column: str) -> bool:
    """True if no row of the table has a value in a column; False if that cannot be seen."""
    question = sql.SQL(
        "SELECT NOT EXISTS (SELECT FROM {table} WHERE {column} IS NOT NULL)"
        if shape.is_partitioned
        else "SELECT NOT EXISTS (SELECT FROM ONLY {table} WHERE {column} IS NOT NULL)"
    )
    return asked(connection, shape.oid, question, column=sql.Identifier(column)) or False
