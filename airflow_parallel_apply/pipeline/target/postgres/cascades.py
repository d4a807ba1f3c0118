"""What the target's own foreign keys do while changes are replayed: ON DELETE and ON UPDATE actions fire here, too.

The source's log has what its cascades did, as rows of the same transaction behind the row that set them off. Where the
target acts by itself, such a row finds its work done: a delete finds no row, a changed key is changed already. That
is right in exactly this case: the table refers, by foreign keys that act, to one whose row was deleted or got another
key earlier in the same transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

from airflow_parallel_apply.pipeline.event import Operation
from airflow_parallel_apply.pipeline.target.postgres.statements import statement


class Cascades:
    """Follows a replay, change by change. `acting`: by child, the tables whose rows' changes may reach it."""

    def __init__(self, acting: Mapping[int, frozenset[int]]) -> None:
        self._acting = acting
        self._seqno = -1
        self._changed: set[int] = set()
        """Tables of which this transaction has deleted a row or changed a key so far."""

    def may_have_acted(self, oid: int, seqno: int, operation: Operation) -> bool:
        """Whether the target may have done this change itself; and take note of the change."""
        if seqno != self._seqno:
            self._seqno = seqno
            self._changed.clear()
        if operation not in (Operation.DELETE, Operation.KEY_ARRIVED):
            return False
        found = not self._changed.isdisjoint(self._acting.get(oid, frozenset()))
        self._changed.add(oid)
        return found


def find_cascades(connection: psycopg.Connection[Any], *, schema: str) -> Cascades:
    """As the session's role makes them: a replica's foreign keys do nothing. Errors: psycopg's own."""
    parents: dict[int, set[int]] = {}
    for child, parent in connection.execute(statement("tables", "acting_keys", schema=schema)):
        parents.setdefault(child, set()).add(parent)
    return Cascades({child: _reaching(child, parents) for child in parents})


def _reaching(child: int, parents: Mapping[int, set[int]]) -> frozenset[int]:
    """Parents, their parents, and so on; the table itself where it refers to itself, or in a circle."""
    found: set[int] = set()
    ahead = set(parents[child])
    while ahead:
        found |= ahead
        ahead = {parent for one in ahead for parent in parents.get(one, ())} - found
    return frozenset(found)
