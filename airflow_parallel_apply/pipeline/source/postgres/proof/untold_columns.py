"""Tables in which a column was dropped and another one created while the event trigger that reports changes was off.

A relation message is read by the last definition that the source reported. The new column may have the name and the
type of the one before, so nothing in the message differs, and its values would be taken for those of the former column.

And tables whose computed columns have expressions that the source did not report: that of a column that was computed
otherwise meanwhile, or what the catalog prints since a type, a label or a function has another name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Final

from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.model.sent_ddl import has_word
from airflow_parallel_apply.pipeline.model.sighting import Sighting, in_order
from airflow_parallel_apply.pipeline.source.postgres.catalog.shape import Shape
from airflow_parallel_apply.pipeline.source.postgres.ddl.signed_messages import SignedMessage, signed_messages
from airflow_parallel_apply.pipeline.source.postgres.pending import Pending
from airflow_parallel_apply.pipeline.source.postgres.proof.histories import Pair
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import RegisteredTable

_XIDS: Final = 2**32


def exchanged_columns(pending: Pending, pairs: Sequence[Pair], sightings: Collection[Sighting]) -> Iterator[Pair]:
    """Yield the tables with columns of which the source should have told and did not. `sightings`: those in the log.
    Errors: psycopg's own.
    """
    exchanged = [pair for pair in pairs if _is_exchanged(_columns(pair[0]), len(pair[0].versions), pair[1])]
    if not exchanged:
        return
    messages = signed_messages(pending)
    was_telling = {sighting.oid for sighting in sightings if sighting.names}
    for before, now in exchanged:
        if not _is_told(before, now, messages, was_telling=before.oid in was_telling):
            yield before, now


def untold_expressions(pending: Pending, sightings: Collection[Sighting], captured_offset: Offset) -> frozenset[int]:
    """The oids of the tables whose computed columns have got expressions of which the source did not tell as it gave
    them. `sightings`: those in the log, this look's included. Errors: psycopg's own.
    """
    known: dict[int, Sighting] = {}
    found: defaultdict[int, list[Sighting]] = defaultdict(list)
    for sighting in in_order(sightings):
        before = known.get(sighting.oid)
        if before is None or sighting.offset <= captured_offset:
            known[sighting.oid] = sighting
            found.pop(sighting.oid, None)
        elif before.names and sighting.expressions != before.expressions:
            found[sighting.oid].append(sighting)
    messages = signed_messages(pending) if found else ()
    return frozenset(oid for oid, later in found.items() if not _are_told(known[oid], later, messages))


def _are_told(before: Sighting, later: Sequence[Sighting], messages: Sequence[SignedMessage]) -> bool:
    """True if each expression that a table had since is that of a statement whose transaction told it."""
    told = [(before, frozenset[int](), dict[int, int]())]
    for message in messages:
        if message.shape is not None and message.shape.oid == before.oid and message.is_exact:
            versions = {number: column.version for number, column in message.shape.columns.items()}
            told.append((message.shape.sighting(before.offset, is_told=True), message.writers, versions))
    # The slot may hold messages of before.
    begin = max(place for place, (one, _, _) in enumerate(told) if _looks(one) == _looks(before))
    steps = pairwise(told[begin:])
    return {_looks(one) for one in later} <= {_looks(one) for one, _, _ in told[begin:]} and all(
        versions[number] in writers or _is_renamed_in(text, one, other)
        for (one, _, _), (other, writers, versions) in steps
        for number, text in other.expressions
        if dict(one.expressions).get(number) != text
    )


def _looks(sighting: Sighting) -> tuple[object, ...]:
    return sighting.names, sighting.expressions


def _is_renamed_in(text: str, one: Sighting, other: Sighting) -> bool:
    """True if an expression names a column by what it was not called before: that changes no version."""
    names = dict(one.names)
    return any(number in names and names[number] != name and has_word(text, name) for number, name in other.names)


def _columns(table: RegisteredTable) -> frozenset[int]:
    """The numbers of the columns that relation messages name."""
    return frozenset(number for number, version in enumerate(table.versions, 1) if version)


def _is_exchanged(there: frozenset[int], last_number: int, now: RegisteredTable) -> bool:
    """True if a column that was there is gone, and another one was made: neither alone passes for what was told."""
    return len(now.versions) > last_number and not there <= _columns(now)


def _is_told(
    before: RegisteredTable, now: RegisteredTable, messages: Sequence[SignedMessage], *, was_telling: bool
) -> bool:
    """True if no exchange lies between two definitions of which the source told the second by another change only.
    `was_telling`: whether it did so from the registration on; else it does from its first message on.
    """
    there, last_number = _columns(before), len(before.versions)
    for message in messages:
        shape = message.shape
        # The slot may hold messages of before the registration.
        if shape is None or shape.oid != before.oid or shape.last_number < last_number:
            continue
        new = frozenset(range(last_number + 1, shape.last_number + 1))
        if was_telling and new and not (there <= shape.plain or _has_made(message.xid, new, shape)):
            return False
        there, last_number, was_telling = (there | new) & shape.plain, shape.last_number, True
    return not (was_telling and _is_exchanged(there, last_number, now))


def _has_made(xid: int, numbers: frozenset[int], shape: Shape) -> bool:
    """True if a transaction, or a subtransaction of it, can have made all of some columns: their entries in the catalog
    are no older than it.
    """
    return numbers <= shape.columns.keys() and all(
        # A trigger of an earlier version does not tell versions.
        not (version := shape.columns[number].version) or (version - xid) % _XIDS < _XIDS // 2
        for number in numbers
    )
