"""From tuples on the wire to changes with numbered cells: `changes_of`, for one batch of messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from airflow_parallel_apply.pipeline.errors import SourceError
from airflow_parallel_apply.pipeline.model.change import Operation, Relation
from airflow_parallel_apply.pipeline.source.cells import Cells, Numbers
from airflow_parallel_apply.pipeline.source.postgres.wire.cells import TupleCells, Wire
from airflow_parallel_apply.pipeline.source.rows import Changes


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedTable:
    """A relation with its log id.

    A partition's own replica identity decides what is sent of an old row, its root's how that is marked. So of a
    partitioned table with a key nothing but the key is believed.
    """

    relation: Relation
    is_partitioned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuples:
    """Changes of one shape: their message numbers, ascending, and where their first tuples begin.

    `old` is what stands before the new tuple: None, "K" (the key's columns) or "O" (all columns).
    """

    table: FollowedTable
    operation: Operation
    old: str | None
    messages: Numbers
    cursor: Numbers

    @property
    def has_both(self) -> bool:
        """True if an old tuple stands before a new one."""
        return self.old is not None and self.operation is Operation.UPDATE


def changes_of(wire: Wire, groups: Sequence[Tuples]) -> tuple[Cells, list[Changes]]:
    """All cells of a batch, and its changes. Errors: `SourceError` for tuples that do not fill their messages."""
    cells_of_message = np.zeros(len(wire), dtype=np.int64)
    for group in groups:
        cells_of_message[group.messages] = (1 + group.has_both) * len(group.table.relation.columns)
    first_cell: Numbers = np.cumsum(cells_of_message) - cells_of_message
    cells = TupleCells(wire, int(cells_of_message.sum()))
    for group in groups:
        if not np.array_equal(_walk(cells, group, first_cell), wire.ends[group.messages]):
            raise SourceError("pgoutput sent a change of unexpected length", op="capture")
    return cells.cells(), [_numbered(group, first_cell) for group in groups]


def _walk(cells: TupleCells, group: Tuples, first_cell: Numbers) -> Numbers:
    """Returns where the changes end."""
    width, first = len(group.table.relation.columns), first_cell[group.messages]
    end = cells.add(group.cursor, first, width)
    # One byte, N, between the old tuple and the new one.
    return cells.add(end + 1, first + width, width) if group.has_both else end


def _numbered(group: Tuples, first_cell: Numbers) -> Changes:
    relation = group.table.relation
    width = len(relation.columns)
    first = first_cell[group.messages][:, np.newaxis] + np.arange(width)
    is_delete = group.operation is Operation.DELETE
    return Changes(
        relation=relation,
        operation=group.operation,
        messages=group.messages,
        old=first if is_delete or group.has_both else None,
        new=None if is_delete else first + width * group.has_both,
        is_whole=group.old == "O" and not group.table.is_partitioned,
    )
