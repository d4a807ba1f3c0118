"""Enums whose labels were renamed: every value that has the label prints another text then, and no row is sent. A row
that was written before a label got its former name back was sent with the name of that moment.

A DDL message of the transaction that renamed it acquits, since the target runs the same; for one that has its former
name again, the messages of two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from airflow_parallel_apply.pipeline.source.postgres.rewrites import Pair
from airflow_parallel_apply.pipeline.source.postgres.signed_messages import signed_messages, writers_of


def renamed_labels(
    connection: psycopg.Connection[Any], slot: str, publication: str, pairs: Sequence[Pair]
) -> Iterator[tuple[Pair, tuple[str, ...]]]:
    """Yield the tables with labels that were renamed since they were registered, and the names before. Errors:
    psycopg's own.
    """
    renamed = {pair: [*_renamed(pair)] for pair in pairs}
    if not any(renamed.values()):
        return
    sent = [message for message in signed_messages(connection, slot, publication) if message.retypes]
    writers, transactions = writers_of(sent), {message.xid for message in sent}
    for pair, labels in renamed.items():
        unsent = [label for label, writer, times in labels if writer not in writers or len(transactions) < times]
        if unsent:
            yield pair, tuple(unsent)


def _renamed(pair: Pair) -> Iterator[tuple[str, int, int]]:
    """Yield former labels, who wrote their entries last, and how many times they were renamed at least."""
    before, after = pair
    now = {oid: (label, version) for oid, label, version in after.labels}
    for oid, label, version in before.labels:
        label_now, writer = now.get(oid, (label, version))
        if label_now != label:
            yield label, writer, 1
        # A log of an older version has no versions.
        elif version and writer != version:
            yield label, writer, 2
