"""Composite types to which attributes were added, or which lost some: every value of the type then prints another text,
and no row is sent. Rows that were written while a short-lived attribute existed have it in their texts.

A DDL message of the same change, in the transaction that made it, acquits, because the target runs the same statement.
An attribute's name is in no row's text, and its type cannot change while a table has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from airflow_parallel_apply.pipeline.source.postgres.ddl.signed_messages import (
    TYPE_NAME,
    TYPE_WORDS,
    SignedMessage,
    signed_messages,
)
from airflow_parallel_apply.pipeline.source.postgres.pending import Pending
from airflow_parallel_apply.pipeline.source.postgres.proof.histories import Pair

_ENTRIES: Final = f"""
SELECT a.attrelid::bigint, a.attnum::int, a.xmin::text::bigint, t.typname::text, {TYPE_NAME},
    CASE WHEN NOT a.attisdropped THEN a.attname::text END
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.typrelid = a.attrelid
WHERE a.attrelid = ANY (%(types)s::bigint[]::oid[]) AND a.attnum > 0
"""


@dataclass(frozen=True, slots=True)
class _Entry:
    """An attribute's entry: who wrote it, the type's name now and, if it is known, then, the attribute's name; None of
    one that is dropped.
    """

    writer: int
    type_name: str
    name_then: str
    attribute: str | None


def altered_attributes(
    pending: Pending, pairs: Sequence[Pair], horizon: int | None
) -> Iterator[tuple[Pair, tuple[str, ...]]]:
    """Yield the tables with types of other attributes than were registered, and the types. `horizon`: that of the
    registration. Errors: psycopg's own.
    """
    altered = {pair: _altered(pair) for pair in pairs}
    oids = {oid for numbers in altered.values() for oid in numbers}
    if not oids:
        return
    found = pending.connection.execute(_ENTRIES, {"types": [*oids], "horizon": horizon or 0}).fetchall()
    entries = {(oid, number): _Entry(*entry) for oid, number, *entry in found}
    names = {oid: entry.type_name for (oid, _), entry in entries.items()}
    messages = signed_messages(pending)
    for pair, types in altered.items():
        unsent = [
            names.get(oid, str(oid))
            for oid, numbers in types.items()
            if not _are_sent([entries.get((oid, number)) for number in numbers], messages)
        ]
        if unsent:
            yield pair, tuple(unsent)


def _are_sent(entries: Collection[_Entry | None], messages: Sequence[SignedMessage]) -> bool:
    """True if each transaction that wrote some of a type's entries sent DDL that may do all of it."""
    dropped: Counter[tuple[int, str]] = Counter()
    for entry in entries:
        if entry is None:
            return False
        if entry.attribute is None:
            dropped[entry.writer, entry.name_then] += 1
        elif not any(
            entry.writer in message.writers and message.mentions(TYPE_WORDS, entry.name_then, entry.attribute)
            for message in messages
        ):
            return False
    return all(
        sum(message.drops(type_name) for message in messages if writer in message.writers) >= count
        for (writer, type_name), count in dropped.items()
    )


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
