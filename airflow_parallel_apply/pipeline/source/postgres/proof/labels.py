"""Enums whose labels were renamed: every value that has the label then prints another text, and no row is sent. A row
that was written before a label got its former name back was sent with the name of that moment.

A DDL message that names the label, in the transaction that renamed it, acquits, because the target runs the same
statement; a label that has its former name again needs the messages of both transactions.

Some twenty ADD VALUE before the same label use up the numbers between two, and the server numbers all labels anew. That
leaves the trace of a label that was renamed and renamed back, and may hide one: so it counts as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from airflow_parallel_apply.pipeline.source.postgres.ddl.signed_messages import (
    TYPE_NAME,
    SignedMessage,
    signed_messages,
    writers_of,
)
from airflow_parallel_apply.pipeline.source.postgres.pending import Pending
from airflow_parallel_apply.pipeline.source.postgres.proof.histories import Pair

_TYPES: Final = (
    f"SELECT e.oid::bigint, {TYPE_NAME} FROM pg_catalog.pg_enum e JOIN pg_catalog.pg_type t ON t.oid = e.enumtypid "
    "WHERE e.oid = ANY (%(labels)s::bigint[]::oid[])"
)


@dataclass(frozen=True, slots=True)
class _Label:
    """A renamed label: its entry, its name before and now, who wrote that last, and how many times at least."""

    oid: int
    before: str
    now: str
    writer: int
    times: int


def renamed_labels(
    pending: Pending, pairs: Sequence[Pair], horizon: int | None
) -> Iterator[tuple[Pair, tuple[str, ...]]]:
    """Yield the tables with labels that were renamed since they were registered, and the names before. `horizon`: that
    of the registration. Errors: psycopg's own.
    """
    renamed = {pair: [*_renamed(pair)] for pair in pairs}
    if not any(renamed.values()):
        return
    oids = [label.oid for labels in renamed.values() for label in labels]
    types = dict(pending.connection.execute(_TYPES, {"labels": oids, "horizon": horizon or 0}).fetchall())
    messages = signed_messages(pending)
    for pair, labels in renamed.items():
        unsent = [label.before for label in labels if not _is_sent(label, types.get(label.oid, ""), messages)]
        if unsent:
            yield pair, tuple(unsent)


def _is_sent(label: _Label, type_name: str, messages: Sequence[SignedMessage]) -> bool:
    naming = [message for message in messages if message.mentions("type", type_name, label.now)]
    return label.writer in writers_of(naming) and len({message.xid for message in naming}) >= label.times


def _renamed(pair: Pair) -> Iterator[_Label]:
    before, after = pair
    now = {oid: (label, version) for oid, label, version in after.labels}
    for oid, label, version in before.labels:
        label_now, writer = now.get(oid, (label, version))
        if label_now != label:
            yield _Label(oid, label, label_now, writer, times=1)
        # A log of an older version has no versions.
        elif version and writer != version:
            yield _Label(oid, label, label_now, writer, times=2)
