"""Composite types whose attributes came or went: every value of the type prints another text then, and no row is sent.
One that came and went again is in the texts of the rows that were written in between.

A DDL message that names them, of the transaction that did it, acquits, since the target runs the same. An attribute's
name is in no row's text, and its type cannot change while a table has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from airflow_parallel_apply.pipeline.source.postgres.rewrites import Pair
from airflow_parallel_apply.pipeline.source.postgres.signed_messages import signed_messages, writers_of

_ENTRIES = """
SELECT a.attrelid::bigint, a.attnum::int, a.xmin::text::bigint, c.relname::text,
    CASE WHEN a.attisdropped THEN 'drop' ELSE a.attname::text END
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
WHERE a.attrelid = ANY (%s) AND a.attnum > 0
"""


def altered_attributes(
    connection: psycopg.Connection[Any], slot: str, publication: str, pairs: Sequence[Pair]
) -> Iterator[tuple[Pair, tuple[str, ...]]]:
    """Yield the tables with types of other attributes than were registered, and the types. Errors: psycopg's own."""
    altered = {pair: _altered(pair) for pair in pairs}
    oids = {oid for numbers in altered.values() for oid in numbers}
    if not oids:
        return
    entries = {
        (oid, number): (writer, type_name, attribute)
        for oid, number, writer, type_name, attribute in connection.execute(_ENTRIES, [list(oids)]).fetchall()
    }
    names = {oid: type_name for (oid, _), (_, type_name, _) in entries.items()}
    messages = signed_messages(connection, slot, publication)
    sent = {
        place
        for place, (writer, *named) in entries.items()
        if writer in writers_of(message for message in messages if message.mentions("type", *named))
    }
    for pair, numbers in altered.items():
        unsent = [oid for oid, some in numbers.items() if not sent.issuperset((oid, number) for number in some)]
        if unsent:
            yield pair, tuple(names.get(oid, str(oid)) for oid in unsent)


def _altered(pair: Pair) -> dict[int, set[int]]:
    """The numbers of the attributes that came or went, by the type's oid."""
    before, after = pair
    now = dict(after.attributes)
    found = {oid: _changed(text, now[oid]) for oid, text in before.attributes if now.get(oid, text) != text}
    return {oid: numbers for oid, numbers in found.items() if numbers}


def _changed(before: str, after: str) -> set[int]:
    (old, old_count), (new, new_count) = _numbers(before), _numbers(after)
    # A log of an older version does not say how many there ever were.
    came = range(old_count + 1, new_count + 1) if old_count else ()
    return (old ^ new) | {*came}


def _numbers(text: str) -> tuple[set[int], int]:
    """Those that are there, and how many there ever were; 0 where that is not known."""
    numbers, _, count = text.partition("/")
    return {int(number) for number in numbers.split()}, int(count or 0)
