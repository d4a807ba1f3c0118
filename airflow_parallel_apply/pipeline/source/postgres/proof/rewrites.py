"""Tables whose values an ALTER TABLE may have changed: `ALTER COLUMN … TYPE … USING`, of which no row is sent.

It leaves two traces together: the rows have a new file, and the column's entry in the catalog a new version. Each alone
is harmless (VACUUM FULL; SET NOT NULL), and so may both be: a table that an ALTER TABLE rewrote has no row left that an
earlier transaction wrote, so one such row acquits. Else the slot is asked, whose messages tell what was done: an event
trigger sends each rewrite, and whether its statement had no USING; and what a DDL message says of the column, the
target does too, as many times as messages say it. What none of that tells may be anything. Generated columns are
compared by their expressions, at the target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.source.postgres.catalog.own_rows import asked
from airflow_parallel_apply.pipeline.source.postgres.ddl.signed_messages import SignedMessage, signed_messages
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import RegisteredTable

_XIDS: Final = 2**32
_HALF: Final = _XIDS // 2

_NAMES: Final = """
WITH RECURSIVE above (oid) AS (
    SELECT %(oid)s::bigint::oid
    UNION
    SELECT i.inhparent FROM above JOIN pg_catalog.pg_inherits i ON i.inhrelid = above.oid
)
SELECT c.relname::text FROM above JOIN pg_catalog.pg_class c ON c.oid = above.oid
UNION
SELECT t.typname::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_type t ON t.oid = c.reloftype
WHERE c.oid = %(oid)s::bigint::oid
"""
"""The names of a table, of those that it inherits from, and of the type that it is of."""

Pair = tuple[RegisteredTable, RegisteredTable]
"""A table as it is registered, and as it is now."""
Told = Counter[tuple[frozenset[int], str, str]]
"""How many alterations messages have to tell, by transaction and by the names of table and column: tables of several
schemas may have the same.
"""


@dataclass(frozen=True, slots=True)
class Look:
    """A table at a moment: its files by part, and by number its columns' versions and, unless it is a registered one,
    their names. `writers`: what the catalog calls the transaction that sent it.
    """

    files: Mapping[int, int]
    versions: Mapping[int, int]
    names: Mapping[int, str] = field(default_factory=dict)
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

    def rewritten(self, now: Look) -> frozenset[int]:
        """The parts that were there before and have other files now."""
        return frozenset(part for part, file in now.files.items() if self.files.get(part, file) != file)


def altered_values(
    connection: psycopg.Connection[Any],
    slot: str,
    publication: str,
    pairs: Sequence[Pair],
    *,
    horizon: int | None,
) -> Iterator[tuple[Pair, tuple[str, ...]]]:
    """Those whose older rows may have got other values, with the names of the columns. `horizon`: that of the
    registration. Errors: psycopg's own.
    """
    doubted = []
    for pair in pairs:
        before, now = (Look.at(table) for table in pair)
        files = before.rewritten(now)
        if before.touched(now) and not all(has_older_row(connection, part, horizon=horizon) for part in files):
            doubted.append(pair)
    messages = signed_messages(connection, slot, publication) if doubted else ()
    told = Told()
    for pair in doubted:
        before, now = (Look.at(table) for table in pair)
        now = replace(now, names=_columns(connection, pair[1].oid))
        tables = (pair[0].table, *_tables(connection, pair[1].oid))
        if not _is_told(pair[0].oid, before, now, messages, tables, told):
            yield pair, tuple(name for number, name in now.names.items() if number in before.touched(now))


def has_older_row(
    connection: psycopg.Connection[Any],
    part: int,
    *,
    horizon: int | None,
    or_none: bool = True,
) -> bool:
    """True if a part has a row of a transaction that was over before, or no row at all (`or_none`). A rewritten row
    belongs to the transaction that rewrote it.
    """
    if horizon is None:
        return False
    older = sql.SQL(
        "SELECT {or_none} AND NOT EXISTS (SELECT FROM ONLY {table}) OR EXISTS (SELECT FROM ONLY {table} "
        "WHERE xmin::text::bigint < 3 OR ((xmin::text::bigint - {horizon}) & {mask}) >= {half})"
    )
    found = asked(
        connection,
        part,
        older,
        or_none=sql.Literal(or_none),
        horizon=sql.Literal(horizon % _XIDS),
        mask=sql.Literal(_XIDS - 1),
        half=sql.Literal(_HALF),
    )
    return found or False


def _is_told(
    oid: int, before: Look, now: Look, messages: Sequence[SignedMessage], tables: Sequence[str], told: Told
) -> bool:
    """True if each step from one look to the other changed only what the target is told, or nothing at all. `tables`:
    the names by which statements may call the table, its own first. `told`: what messages tell of that already.
    """
    plain: dict[int, list[tuple[int, bool]]] = {}
    last = before
    for message in messages:
        if message.part is not None:
            plain.setdefault(message.part, []).append((message.file, message.is_plain))
        elif message.shape is not None and message.shape.oid == oid and message.shape.has_versions:
            columns = {number: one for number, one in message.shape.columns.items() if not one.generated}
            sent = Look(
                files={part: dict(message.shape.rewritten).get(part, part) for part in last.files},
                versions={number: column.version for number, column in columns.items()},
                names={number: column.name for number, column in columns.items()},
                writers=message.writers,
            )
            if not _is_harmless(last, sent, plain, messages, tables, told):
                return False
            last = sent
            plain.clear()
    return _is_harmless(last, now, {}, messages, tables, told)


def _is_harmless(
    before: Look,
    now: Look,
    plain: Mapping[int, Sequence[tuple[int, bool]]],
    messages: Sequence[SignedMessage],
    tables: Sequence[str],
    told: Told,
) -> bool:
    altered, rewritten = before.altered(now), before.rewritten(now)
    # What one transaction does to a column may have one version.
    is_one_transaction = bool(before.writers & now.writers)
    if not rewritten or not (altered or is_one_transaction):
        return True
    if all(plain.get(part) == [(before.files[part], True)] for part in rewritten):
        return True
    doubted = altered or {number for number, version in now.versions.items() if version in now.writers}
    if not doubted or not doubted <= now.names.keys():
        # Without a name it is gone by now.
        return False
    for number in doubted:
        name, writers = now.names[number], now.writers or frozenset({now.versions[number]})
        told[writers, tables[0], name] += 1
        count = sum(message.retypes(name, tables) for message in messages if message.writers & writers)
        if count < told[writers, tables[0], name]:
            return False
    return True


def _columns(connection: psycopg.Connection[Any], oid: int) -> dict[int, str]:
    """The names of a table's columns."""
    query = (
        "SELECT attnum::int, attname::text FROM pg_catalog.pg_attribute WHERE attrelid = %s AND attnum > 0 ORDER BY 1"
    )
    return dict(connection.execute(query, [oid]).fetchall())


def _tables(connection: psycopg.Connection[Any], oid: int) -> set[str]:
    """The names that statements may call a table by which alter its columns."""
    return {name for (name,) in connection.execute(_NAMES, {"oid": oid}).fetchall()}
