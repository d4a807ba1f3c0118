"""Tables whose values an ALTER TABLE may have changed: `ALTER COLUMN … TYPE … USING`, of which no row is sent.

It leaves two traces together: the rows have a new file, and the column's entry in the catalog a new version. Each alone
is harmless (VACUUM FULL; SET NOT NULL), and so may both be: a table that an ALTER TABLE rewrote has no row left that an
earlier transaction wrote, so one such row acquits. Else the slot is asked, whose messages tell what was done: an event
trigger sends each rewrite, and whether its statement had no USING; and what a DDL message says of the column, the
target does too, once for each of its statements. What none of that tells may be anything. Generated columns are
compared by their expressions, at the target.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.source.postgres.catalog.own_rows import asked
from airflow_parallel_apply.pipeline.source.postgres.ddl.signed_messages import SignedMessage, signed_messages
from airflow_parallel_apply.pipeline.source.postgres.proof.passed_types import (
    Known,
    passed_expressions,
    passed_types,
    written_types,
)
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import RegisteredTable

_XIDS: Final = 2**32
_HALF: Final = _XIDS // 2

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
SELECT above.number::int, own.attname::text, pg_catalog.format_type(own.atttypid, own.atttypmod),
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
"""A table's columns: number, name, type, where statements alter it, and what they may call that: the table, one that it
inherits the column from, or the type that such a table is of.
"""

Pair = tuple[RegisteredTable, RegisteredTable]
"""A table as it is registered, and as it is now."""


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


def altered_values(
    connection: psycopg.Connection[Any],
    slot: str,
    publication: str,
    pairs: Sequence[Pair],
    *,
    horizon: int | None,
    log: Mapping[int, Known],
) -> Iterator[tuple[Pair, tuple[str, ...], tuple[str, ...]]]:
    """Those whose older rows may have got other values, with the names of the columns; or else with what is to be said
    of the columns that had another type in between. `horizon`: that of the registration. `log`: what that knows of
    tables. Errors: psycopg's own.
    """
    doubted: dict[Pair, bool] = {}
    for pair in pairs:
        before, now = (Look.at(table) for table in pair)
        touched, known = before.touched(now), log.get(pair[0].oid)
        is_rewritten = bool(touched) and not all(
            has_older_row(connection, part, horizon=horizon) for part in before.rewritten(now)
        )
        if is_rewritten or (known is not None and known.has_pending(touched)):
            doubted[pair] = is_rewritten
    messages = signed_messages(connection, slot, publication) if doubted else ()
    histories = [_history(connection, pair, messages) for pair in doubted]
    # A statement alters a column in all tables that inherit it, and each of them shows that.
    total = Counter[Alteration]()
    called: defaultdict[int, Names] = defaultdict(frozenset)
    for history in histories:
        total |= Counter(history.alterations)
        for alteration in history.alterations:
            called[alteration.place] |= history.names
    for (pair, is_rewritten), history in zip(doubted.items(), histories, strict=True):
        told = Counter(one.column for one in history.alterations if _is_told(one, messages, total, called))
        touched = Look.at(pair[0]).touched(Look.at(pair[1]))
        columns = {number: one for number, one in history.columns.items() if number in touched}
        is_told = history.has_names and told.total() == len(history.alterations)
        if is_rewritten and history.is_doubted and not is_told:
            yield pair, tuple(column.name for column in columns.values()), ()
            continue
        known, oid = log.get(pair[0].oid, Known()), pair[0].oid
        types = passed_types(known, messages, oid, {number: one.type_name for number, one in columns.items()})
        passed = {columns[number].name: ones for number, ones in types.items()}
        unsent = {name: ones for name, ones in passed.items() if told[name] < len(ones) - 1}
        if unsent:
            written = written_types(connection, slot, publication, oid)
            unsent = {name: ones for name, ones in unsent.items() if not written.get(name, set()) >= {*ones[1:-1]}}
        computed = passed_expressions(known, messages, oid, columns, is_rewritten=is_rewritten)
        for name, ones in ((columns[number].name, ones) for number, ones in computed.items()):
            if sum(one.mentions(r"set\s+expression", name) for one in messages) < max(len(ones) - 1, 1):
                unsent[name] = ones
        if unsent:
            yield pair, (), tuple(f"{name} ({', '.join(ones)})" for name, ones in unsent.items())


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


@dataclass(slots=True)
class _History:
    """The steps that a table with these `columns` went through. `alterations`: of its columns, by statements that call
    it by one of `names`. `is_doubted`: one of them may have had a USING. `has_names`: all columns that such a one
    altered are there.
    """

    names: Names
    columns: Mapping[int, _LivingColumn]
    alterations: list[Alteration] = field(default_factory=list)
    is_doubted: bool = False
    has_names: bool = True


def _history(connection: psycopg.Connection[Any], pair: Pair, messages: Sequence[SignedMessage]) -> _History:
    before, now = (Look.at(table) for table in pair)
    columns = _columns(connection, pair[1].oid)
    names = Names({(pair[0].schema, pair[0].table)}).union(*(column.tables for column in columns.values()))
    found = _History(names, columns)
    now = replace(now, names={number: column.name for number, column in columns.items()})
    for step in _steps(pair[0].oid, before, now, messages):
        if step.is_doubted:
            found.is_doubted = True
            found.has_names &= bool(step.columns) and step.columns <= step.look.names.keys() & columns.keys()
        for number in step.columns & step.look.names.keys() & columns.keys():
            writers = step.look.writers or frozenset({step.look.versions[number]})
            whole = next((message.writers for message in messages if message.writers & writers), writers)
            found.alterations.append(Alteration(whole, columns[number].place, step.look.names[number]))
    return found


def _is_told(
    alteration: Alteration,
    messages: Sequence[SignedMessage],
    total: Mapping[Alteration, int],
    called: Mapping[int, Names],
) -> bool:
    """True if statements of its transaction tell of an alteration as many times as tables show it, `total`. Where they
    may mean the column of another table as well, they tell of both.
    """
    writers, place, column = alteration
    sent = [message for message in messages if message.writers & writers]
    tables = {table for _, table in called[place]}
    namesakes = {
        one.place
        for one in total
        if (one.writers, one.column) == (writers, column) and tables & {table for _, table in called[one.place]}
    }

    def is_enough(places: Set[int]) -> bool:
        wanted = sum(total[alteration._replace(place=one)] for one in places)
        names = frozenset[tuple[str, str]]().union(*(called[one] for one in places))
        return sum(message.retypes(column, names) for message in sent) >= wanted

    return is_enough({place}) and is_enough(namesakes)


class _Step(NamedTuple):
    """A statement that altered columns; `is_doubted` if it may have had a USING. `look`: what the table had become."""

    columns: frozenset[int]
    is_doubted: bool
    look: Look


def _steps(oid: int, before: Look, now: Look, messages: Sequence[SignedMessage]) -> Iterator[_Step]:
    """The way from one look to the other."""
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
                types={number: column.type_name for number, column in columns.items()},
                writers=message.writers,
            )
            yield _step(last, sent, plain)
            last = sent
            plain.clear()
    yield _step(last, now, {})


def _step(before: Look, now: Look, plain: Mapping[int, Sequence[tuple[int, bool]]]) -> _Step:
    altered, rewritten = before.altered(now), before.rewritten(now)
    # What one transaction does to a column may have one version.
    is_one_transaction = bool(before.writers & now.writers)
    if not rewritten or not (altered or is_one_transaction):
        return _Step(before.retyped(now), False, now)
    if all(plain.get(part) == [(before.files[part], True)] for part in rewritten):
        return _Step(before.retyped(now) | altered, False, now)
    altered = altered or frozenset(number for number, version in now.versions.items() if version in now.writers)
    return _Step(altered, True, now)


class _LivingColumn(NamedTuple):
    """`place`: where statements alter it. `tables`: what these may call that."""

    name: str
    type_name: str
    place: int
    tables: Names


def _columns(connection: psycopg.Connection[Any], oid: int) -> dict[int, _LivingColumn]:
    """A table's columns by number."""
    rows = connection.execute(_COLUMNS, {"oid": oid}).fetchall()
    return {
        number: _LivingColumn(name, type_name, place, frozenset((schema, table) for schema, table in tables))
        for number, name, type_name, place, tables in rows
    }
