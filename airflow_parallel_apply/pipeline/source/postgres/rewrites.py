"""Tables whose values an ALTER TABLE may have changed: `ALTER COLUMN … TYPE … USING`, of which no row is sent.

It leaves two traces together: the rows have a new file, and the column's entry in the catalog a new version. Each alone
is harmless (VACUUM FULL; SET NOT NULL), and so may both be: a table that an ALTER TABLE rewrote has no row left that an
earlier transaction wrote, so one such row acquits. Else the slot is asked, whose messages tell what was done: an event
trigger sends each rewrite, and whether its statement had no USING; and what a DDL message says, the target does too.
What none of that tells may be anything. Generated columns are compared by their expressions, at the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.source.postgres.registration import RegisteredTable
from airflow_parallel_apply.pipeline.source.postgres.signed_messages import SignedMessage, signed_messages, writers_of

_LONGEST_LOOK: Final = "60s"
"""How long it may take to find a row that was not rewritten."""
_XIDS: Final = 2**32
_HALF: Final = _XIDS // 2

Pair = tuple[RegisteredTable, RegisteredTable]
"""A table as it is registered, and as it is now."""


@dataclass(frozen=True, slots=True)
class Look:
    """A table at a moment: its files by part, its columns' versions by number. `xid`: the transaction that sent it."""

    files: Mapping[int, int]
    versions: Mapping[int, int]
    xid: int | None = None

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
    for pair in doubted:
        before, now = (Look.at(table) for table in pair)
        if not _is_told(pair[0].oid, before, now, messages):
            yield pair, _names(connection, pair[1].oid, before.touched(now))


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
    name = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_catalog.pg_class c "
        "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s",
        [part],
    ).fetchone()
    if name is None:
        return False
    table = sql.Identifier(*name)
    older = sql.SQL(
        "SELECT {or_none} AND NOT EXISTS (SELECT FROM ONLY {table}) OR EXISTS (SELECT FROM ONLY {table} "
        "WHERE xmin::text::bigint < 3 OR ((xmin::text::bigint - {horizon}) & {mask}) >= {half})"
    ).format(
        table=table,
        or_none=sql.Literal(or_none),
        horizon=sql.Literal(horizon % _XIDS),
        mask=sql.Literal(_XIDS - 1),
        half=sql.Literal(_HALF),
    )
    try:
        with connection.transaction():
            connection.execute(sql.SQL("SET LOCAL statement_timeout = {}").format(sql.Literal(_LONGEST_LOOK)))
            found = connection.execute(older).fetchone()
    except (psycopg.errors.QueryCanceled, psycopg.errors.InsufficientPrivilege):
        return False
    return found is not None and bool(found[0])


def _is_told(oid: int, before: Look, now: Look, messages: Sequence[SignedMessage]) -> bool:
    """True if each step from one look to the other changed only what the target is told, or nothing at all."""
    ddl = writers_of(message for message in messages if message.retypes)
    plain: dict[int, list[tuple[int, bool]]] = {}
    last = before
    for message in messages:
        if message.part is not None:
            plain.setdefault(message.part, []).append((message.file, message.is_plain))
        elif message.shape is not None and message.shape.oid == oid:
            sent = Look(
                files={part: dict(message.shape.rewritten).get(part, part) for part in last.files},
                versions={
                    number: column.version for number, column in message.shape.columns.items() if not column.generated
                },
                xid=message.xid,
            )
            if not _is_harmless(last, sent, plain, ddl):
                return False
            last = sent
            plain.clear()
    return _is_harmless(last, now, {}, ddl)


def _is_harmless(before: Look, now: Look, plain: Mapping[int, Sequence[tuple[int, bool]]], ddl: frozenset[int]) -> bool:
    altered, rewritten = before.altered(now), before.rewritten(now)
    # What one transaction does to a column may have one version.
    is_one_transaction = before.xid is not None and before.xid == now.xid
    if not rewritten or not (altered or is_one_transaction):
        return True
    if all(plain.get(part) == [(before.files[part], True)] for part in rewritten):
        return True
    return now.xid in ddl or (bool(altered) and all(now.versions[number] in ddl for number in altered))


def _names(connection: psycopg.Connection[Any], oid: int, numbers: frozenset[int]) -> tuple[str, ...]:
    rows = connection.execute(
        "SELECT attname FROM pg_catalog.pg_attribute WHERE attrelid = %s AND attnum = ANY (%s) ORDER BY attnum",
        [oid, [*numbers]],
    ).fetchall()
    return tuple(name for (name,) in rows)
