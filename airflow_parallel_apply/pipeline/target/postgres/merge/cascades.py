"""Follows the target's own foreign keys while changes are replayed: ON DELETE and ON UPDATE actions fire here, too.

The source's log has what its cascades did, as rows of the same transaction behind the row that set them off. If the
target acts by itself, the work of such a row is done already: a delete finds no row, a changed key is changed. That is
right in exactly this case: the table refers, by foreign keys that act, to one whose row was deleted or changed earlier
in the same transaction.

A row that is reached in two ways has intermediate states in the log: one reference has followed, the other one names
what is gone. The target has done both at once. So a reference to nothing, in a row that this transaction has changed
already, stays what it is here; the log's last state of the row names what is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from airflow_parallel_apply.pipeline.model.change import Operation
from airflow_parallel_apply.pipeline.target.postgres.statements import statement


@dataclass(frozen=True, slots=True, kw_only=True)
class ActingKey:
    """A foreign key that changes the child's rows. `parent_name` and `operators`, which compare the parent's columns
    with the child's, are SQL. `children` and `parents`: the tables that have rows of either end: itself, its
    partitions, and those that it is a partition of.
    """

    name: str
    children: frozenset[int]
    parents: frozenset[int]
    parent_name: str
    child_name: str
    deferrable: bool
    columns: tuple[str, ...]
    referenced: tuple[str, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The target's possible doings before a change comes. `done`: the change itself. `between`: the change may bring a
    state in between, of which these references are passed over where they name nothing.
    """

    done: bool
    between: tuple[ActingKey, ...]


class Cascades:
    """Follows a replay, change by change. `learn` the keys first, and again where they may be others."""

    def __init__(self) -> None:
        self._acting: Mapping[int, frozenset[int]] = {}
        self._checked: Mapping[int, tuple[ActingKey, ...]] = {}
        self._seqno = -1
        self._gone: set[int] = set()
        """Tables of which this transaction has deleted a row or changed a key so far."""
        self._changed: set[int] = set()
        """Those and tables of which it has changed a row: a foreign key may refer to any column."""

    def learn(self, keys: Sequence[ActingKey]) -> None:
        """Those that act from here on; what the transaction has done so far stays."""
        parents: dict[int, set[int]] = {}
        for key in keys:
            for child in key.children:
                parents.setdefault(child, set()).update(key.parents)
        self._acting = {child: _reaching(child, parents) for child in parents}
        # What may be checked at the end is: it needs no care.
        self._checked = {
            child: tuple(key for key in keys if child in key.children and not key.deferrable) for child in parents
        }

    def reach(self, oid: int, seqno: int, operation: Operation) -> Reached:
        """Return what the target may have done of this change, and take note of the change."""
        if seqno != self._seqno:
            self._seqno = seqno
            self._gone.clear()
            self._changed.clear()
        acting = self._acting.get(oid, frozenset())
        is_update = operation in (Operation.UPDATE, Operation.KEY_ARRIVED)
        found = Reached(
            # An update, too: by another reference the row may be on its way to be deleted.
            done=operation is not Operation.INSERT
            and not (self._changed if operation is Operation.KEY_ARRIVED else self._gone).isdisjoint(acting),
            between=self._checked.get(oid, ()) if is_update and not self._changed.isdisjoint(acting) else (),
        )
        if operation is not Operation.INSERT:
            self._changed.add(oid)
            if operation is not Operation.UPDATE:
                self._gone.add(oid)
        return found


def find_acting_keys(connection: psycopg.Connection[Any]) -> tuple[ActingKey, ...]:
    """As the session's role makes them: a replica's foreign keys do nothing. Errors: psycopg's own."""
    if connection.execute("SHOW session_replication_role").fetchone() == ("replica",):
        return ()
    cursor = connection.cursor(row_factory=dict_row)
    cursor.execute(statement("tables", "acting_keys"))
    return tuple(
        ActingKey(
            name=row["name"],
            children=frozenset(row["children"]),
            parents=frozenset(row["parents"]),
            parent_name=row["parent_name"],
            child_name=row["child_name"],
            deferrable=row["deferrable"],
            columns=tuple(row["columns"]),
            referenced=tuple(row["referenced"]),
            operators=tuple(row["operators"]),
        )
        for row in cursor
    )


def _reaching(child: int, parents: Mapping[int, set[int]]) -> frozenset[int]:
    """Parents, their parents, and so on; the table itself where it refers to itself, or in a circle."""
    found: set[int] = set()
    ahead = set(parents[child])
    while ahead:
        found |= ahead
        ahead = {parent for one in ahead for parent in parents.get(one, ())} - found
    return frozenset(found)
