"""Names and definitions that the log has of tables at the place of DDL that was sent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from airflow_parallel_apply.pipeline.apply.outline import Break
from airflow_parallel_apply.pipeline.log.protocol import RowReader
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Relation
from airflow_parallel_apply.pipeline.model.sent_ddl import NamesThen, generates, names_of_text, retypes, statements

_NAMES: Final = 2
"""The place of the names among a message's values, behind its prefix and its text."""


def names_then(message: Break) -> tuple[NamesThen, ...]:
    """The names that tables had, of those that had others than their last definitions say."""
    return names_of_text(text) if (text := text_of_names(message)) else ()


def text_of_names(message: Break) -> str:
    """The same as the log keeps it."""
    return message.values[_NAMES] if len(message.values) > _NAMES else ""


def definitions_before(log: RowReader, seqno: int, later: Collection[int] = ()) -> dict[int | None, Relation]:
    """The last definition of each table, by its oid, that rows of up to this seqno have. `later`: ids of those that
    come behind a statement in its transaction.
    """
    last: dict[int | None, Relation] = {}
    for one in log.state().relations:
        if one.first_seqno in (None, NO_SEQNO):
            # A name that a table was given along with another one's is of the same kind, and comes later.
            last.setdefault(one.oid, one)
        elif one.first_seqno <= seqno and one.relation_id not in later:
            last[one.oid] = one
    return last


def defined_before(message: Break, breaks: Iterable[Break], log: RowReader) -> tuple[Relation, ...]:
    """Where a message may compute or cast values: the definitions that tables had before it; of those that were copied
    since, the copies', too. Only where the source tells of each change: else their types may have been others by then.
    """
    last = _computed_by(message, breaks, log)
    told = {one.oid for one in log.state().sightings if one.names}
    return tuple(
        one
        for one in log.state().relations
        if one.oid in last and one.oid in told
        if one.relation_id == last[one.oid].relation_id
        or (one.first_seqno == NO_SEQNO and one.relation_id > last[one.oid].relation_id)
    )


def assumed_before(message: Break, breaks: Iterable[Break], log: RowReader) -> tuple[tuple[Relation, str], ...]:
    """The columns that tables had before it then, and of which nobody knows what older rows held in them."""
    return tuple(_assumed(_computed_by(message, breaks, log), log))


def _assumed(last: dict[int | None, Relation], log: RowReader) -> Iterator[tuple[Relation, str]]:
    for one in log.state().relations:
        if one.oid in last and one.relation_id <= last[one.oid].relation_id:
            names = {column.number: column.name for column in last[one.oid].columns}
            for column in one.columns:
                if column.is_fill_assumed and column.number in names:
                    yield last[one.oid], names[column.number]


def _computed_by(message: Break, breaks: Iterable[Break], log: RowReader) -> dict[int | None, Relation]:
    """The last definitions of tables before a message, by their oids; none where it computes and casts nothing."""
    if not any(retypes(one) or generates(one) for one in statements(message.values[1])):
        return {}
    behind = [one for one in breaks if one.seqno == message.seqno and one.fragno > message.fragno]
    last = definitions_before(log, message.seqno, {one.relation_id for one in behind if one.operation is None})
    return {oid: one for oid, one in last.items() if oid is not None}
