"""Tables whose values an ALTER TABLE may have changed: `ALTER COLUMN … TYPE … USING`, of which no row is sent.

It leaves two traces together: the rows have a new file, and the column's entry in the catalog a new version. Each alone
is harmless (VACUUM FULL; SET NOT NULL), and so may both be: a table that an ALTER TABLE rewrote has no row left that an
earlier transaction wrote, so one such row acquits. Else the slot is asked, whose messages tell what was done: an event
trigger sends each rewrite, and whether its statement had no USING; and what a DDL message says of the column, the
target does too, once for each of its statements. What none of that tells may be anything. Generated columns are
compared by their types and expressions, at the target; the types that they had in between, here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from operator import attrgetter
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.source.postgres.catalog.own_rows import asked
from airflow_parallel_apply.pipeline.source.postgres.catalog.shape import LivingColumn
from airflow_parallel_apply.pipeline.source.postgres.ddl.signed_messages import SignedMessage, signed_messages
from airflow_parallel_apply.pipeline.source.postgres.pending import Pending
from airflow_parallel_apply.pipeline.source.postgres.proof.histories import (
    Alteration,
    Altered,
    History,
    Look,
    Names,
    Pair,
    history_of,
)
from airflow_parallel_apply.pipeline.source.postgres.proof.passed_types import (
    Known,
    Texts,
    is_seen,
    is_way,
    passed_expressions,
    passed_types,
    remade_types,
    written_types,
)

Tells = Callable[[SignedMessage, str, Iterable[tuple[str, str]]], float]
"""How many of a message's statements may alter a column, by its name and those of its table."""
_TYPE: Final = attrgetter("type_name")
_EXPRESSION: Final = attrgetter("definition")
_XIDS: Final = 2**32
_HALF: Final = _XIDS // 2


class Doubted(NamedTuple):
    """A table whose older rows may have got other values. `altered`: the names of columns that its rewrite may have
    changed. Or what is to be said of columns that had another type or expression in between, `passed`, or another type
    while they were computed, `cast`.
    """

    pair: Pair
    altered: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    cast: tuple[str, ...] = ()


def altered_values(
    pending: Pending, pairs: Sequence[Pair], *, horizon: int | None, log: Mapping[int, Known]
) -> Iterator[Doubted]:
    """Those whose older rows may have got other values. `horizon`: that of the registration. `log`: what that knows of
    tables. Errors: psycopg's own.
    """
    doubted: dict[Pair, bool] = {}
    for pair in pairs:
        before, now = (Look.at(table) for table in pair)
        touched, known = before.touched(now), log.get(pair[0].oid)
        is_rewritten = bool(touched or (known is not None and known.computed)) and not all(
            has_older_row(pending.connection, part, horizon=horizon) for part in before.rewritten(now)
        )
        if is_rewritten or (known is not None and known.has_pending(touched | known.computed.keys())):
            doubted[pair] = is_rewritten and bool(touched)
    messages = signed_messages(pending) if doubted else ()
    histories = [history_of(pending.connection, pair, messages) for pair in doubted]
    # A statement alters a column in all tables that inherit it, and each of them shows that.
    total = Counter[Alteration]()
    called: defaultdict[int, Names] = defaultdict(frozenset)
    for history in histories:
        alterations = [one.alteration for one in history.alterations]
        total |= Counter(alterations)
        for alteration in alterations:
            called[alteration.place] |= history.names
    for (pair, is_rewritten), history in zip(doubted.items(), histories, strict=True):
        told = [one for one in history.alterations if _is_told(one.alteration, messages, total, called)]
        touched = Look.at(pair[0]).touched(Look.at(pair[1]))
        known = log.get(pair[0].oid, Known())
        passed = {
            **_remade_types(history, known, touched, told),
            **_unsent_types(pending, pair, history, known, touched, told),
            **_unsent_expressions(history, known, touched, messages, is_rewritten=is_rewritten),
        }
        names = {number: history.columns[number].name for number in sorted(touched & history.columns.keys())}
        if cast := _cast_types(history, known, known.stored() - touched, messages):
            yield Doubted(pair, cast=_shown(cast, {number: history.columns[number].name for number in cast}))
        if passed:
            yield Doubted(pair, passed=_shown(passed, names))
        elif is_rewritten and not (
            history.has_names and _are_told([one for one in history.alterations if one.is_doubted], told)
        ):
            yield Doubted(pair, altered=tuple(names.values()))


def _shown(found: Mapping[int, Texts], names: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(f"{names[number]} ({', '.join(ones)})" for number, ones in found.items())


def _unsent_types(
    pending: Pending, pair: Pair, history: History, known: Known, touched: Set[int], told: Sequence[Altered]
) -> Mapping[int, Texts]:
    """See `passed_types`; those that neither messages nor rows tell the target of, one after the other."""
    now = {number: column.type_name for number, column in history.columns.items() if number in touched}
    computed = {one.number: one.type_name for one in told if one.is_doubted}
    found = passed_types(
        known,
        history.shapes,
        now,
        is_renamed=history.is_renamed,
        versions=Look.at(pair[0]).versions,
        computed=computed,
        of_renamed_types=history.of_renamed_types,
    )
    unsent = {
        number: types
        for number, types in found.items()
        if not is_way(types, (one.type_name for one in told if one.number == number))
    }
    if not unsent:
        return {}
    written = written_types(pending, pair[0].oid, known)

    def steps(number: int) -> Iterator[str]:
        names = history.names_of(number)
        return (type_name for types in written for name, type_name in types.items() if name in names)

    return {number: types for number, types in unsent.items() if not is_way(types, (*steps(number), types[-1]))}


def _remade_types(history: History, known: Known, touched: Set[int], told: Sequence[Altered]) -> Mapping[int, Texts]:
    """See `remade_types`; those that messages do not tell of, where nothing else is in doubt."""
    unsent = {one.number for one in history.alterations if not one.is_doubted} - {one.number for one in told}
    columns = ((number, history.columns[number]) for number in unsent & touched)
    return remade_types(known, {number: (column.type_name, column.type_number) for number, column in columns})


def _unsent_expressions(
    history: History, known: Known, touched: Set[int], messages: Sequence[SignedMessage], *, is_rewritten: bool
) -> Mapping[int, Texts]:
    """See `passed_expressions`; those that messages do not tell of, one after the other where each is known."""
    numbers = touched & history.columns.keys() & known.computed.keys()
    unseen = {number for number in numbers if is_rewritten and not is_seen(known, history.shapes, number)}
    found = passed_expressions(known, history.shapes, numbers, unseen=unseen)

    def are_sent(number: int, texts: Texts) -> bool:
        if number in unseen:
            return _sent_count(history, number, messages, SignedMessage.recomputes) >= max(len(texts) - 1, 1)
        steps = _sent_steps(history, number, texts[0], messages, _EXPRESSION, SignedMessage.recomputes)
        return is_way(texts, steps)

    return {number: texts for number, texts in found.items() if not are_sent(number, texts)}


def _cast_types(
    history: History, known: Known, numbers: Iterable[int], messages: Sequence[SignedMessage]
) -> Mapping[int, Texts]:
    """See `passed_types`; those of computed columns that messages do not tell the target of, one after the other."""
    now = {number: history.columns[number].type_name for number in numbers if number in history.columns}
    return {
        number: types
        for number, types in passed_types(
            known, history.shapes, now, is_renamed=history.is_renamed, versions={}
        ).items()
        if not is_way(types, _sent_steps(history, number, types[0], messages, _TYPE, SignedMessage.retypes))
    }


def _sent_steps(
    history: History,
    number: int,
    first: str,
    messages: Sequence[SignedMessage],
    text_of: Callable[[LivingColumn], str],
    tells: Tells,
) -> Iterator[str]:
    """The types, or expressions, behind the first one, that a computed column got by statements that their transactions
    sent: those of a transaction that rewrote the table more often than it tells do not count.
    """
    spent = Counter[frozenset[int]]()
    for shape, writers in zip(history.shapes, history.tellers, strict=True):
        text = (text_of(shape.columns[number]) if number in shape.columns else "") or first
        own = [message for message in messages if message.writers & writers]
        times = Counter(message.part for message in own if message.part in dict(shape.rewritten))
        are_told = sum(message.rewrites(history.names) for message in own) >= max(times.values(), default=0)
        if text != first and are_told and spent[writers] < _sent_count(history, number, own, tells):
            spent[writers] += 1
            yield text
        first = text


def _sent_count(history: History, number: int, messages: Sequence[SignedMessage], tells: Tells) -> float:
    return sum(tells(message, name, history.names) for message in messages for name in history.names_of(number))


def has_older_row(connection: psycopg.Connection[Any], part: int, *, horizon: int | None, or_none: bool = True) -> bool:
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


def _are_told(alterations: Sequence[Altered], told: Sequence[Altered]) -> bool:
    """True if each is, or another one of the same statement is, which altered this one beside that at most."""
    steps = {one.step for one in told}
    return all(one in told or (one.is_beside and one.step in steps) for one in alterations)


def _is_told(
    alteration: Alteration,
    messages: Sequence[SignedMessage],
    total: Mapping[Alteration, int],
    called: Mapping[int, Names],
) -> bool:
    """True if statements of its transaction tell of an alteration as many times as tables show it, `total`. Where they
    may mean another column or the column of another table as well, they tell of both: in a text capitals may count or
    not.
    """
    sent = [message for message in messages if message.writers & alteration.writers]

    def tables(place: int) -> Set[str]:
        return {table.lower() for _, table in called[place]}

    namesakes = {
        one
        for one in total
        if (one.writers, one.column.lower()) == (alteration.writers, alteration.column.lower())
        and tables(alteration.place) & tables(one.place)
    }

    def is_enough(alterations: Set[Alteration]) -> bool:
        wanted = sum(total[one] for one in alterations)
        names = frozenset[tuple[str, str]]().union(*(called[one.place] for one in alterations))
        return sum(message.retypes(alteration.column, names) for message in sent) >= wanted

    return is_enough({alteration}) and is_enough(namesakes)
