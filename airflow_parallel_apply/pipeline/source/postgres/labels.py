"""Enums whose labels were renamed: every value that has the label prints another text then, and no row is sent.

A DDL message of the transaction that renamed it acquits, since the target runs the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from airflow_parallel_apply.pipeline.source.postgres.rewrites import Pair
from airflow_parallel_apply.pipeline.source.postgres.signed_messages import signed_messages


def renamed_labels(
    connection: psycopg.Connection[Any], slot: str, publication: str, pairs: Sequence[Pair]
) -> Iterator[tuple[Pair, tuple[str, ...]]]:
    """Yield the tables with labels of other names than were registered, and the names before. Errors: psycopg's own."""
    renamed = {pair: _renamed(pair) for pair in pairs}
    oids = [oid for labels in renamed.values() for oid in labels]
    if not oids:
        return
    rows = connection.execute("SELECT oid::bigint, xmin::text::bigint FROM pg_enum WHERE oid = ANY (%s)", [oids])
    writers: dict[int, int] = dict(rows.fetchall())
    sent = {message.xid for message in signed_messages(connection, slot, publication) if message.retypes}
    for pair, labels in renamed.items():
        unsent = [label for oid, label in labels.items() if writers.get(oid) not in sent]
        if unsent:
            yield pair, tuple(unsent)


def _renamed(pair: Pair) -> dict[int, str]:
    """The former labels of those that have another one now, by oid."""
    before, after = pair
    now = dict(after.labels)
    return {oid: label for oid, label in before.labels if now.get(oid, label) != label}
