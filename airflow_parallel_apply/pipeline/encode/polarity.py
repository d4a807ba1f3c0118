"""The order of deletions and insertions: what readers get of rows that have a weight.

A weight is how often a row comes (above 0) or goes (below 0). Rows *without a key* are told apart by all their values:
whoever reads them must see every deletion before any insertion. Rows *with a key* become one change for each key, and
for that each key may have one old row and one new row at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.ranges import comparable, same_as_next
from airflow_parallel_apply.pipeline.errors import EncodeError

WEIGHT: Final = "_weight"
"""The column of weights (int64)."""

OPERATION: Final = "_operation"
"""The column of a `KeyOperation`, which takes the place of the weights."""

OPERATION_FIELD: Final = pa.field(OPERATION, pa.string(), nullable=False)

_HINT: Final = "The key columns do not tell the rows apart: name others, or none."


class KeyOperation(StrEnum):
    """The effect on a key's row."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    UPSERT = "upsert"
    """An insert or an update: for readers that need not know which."""


class InsertedTwice(EncodeError):
    """A row of a key has a weight above 1."""


class DeletedTwice(EncodeError):
    """A row of a key has a weight below -1."""


class TwoNewRows(EncodeError):
    """A key has two different new rows."""


class TwoOldRows(EncodeError):
    """A key has two different old rows."""


def by_polarity(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """All deletions, and all insertions, each with its operation: a row that comes twice is there twice."""
    weights = _weights(rows)
    values = rows.drop_columns([WEIGHT])

    def part(times: npt.NDArray[np.int64], operation: KeyOperation) -> pa.Table:
        found = values.take(pa.array(np.repeat(np.arange(len(times)), times)))
        return found.append_column(OPERATION_FIELD, pa.array([operation.value] * found.num_rows, pa.string()))

    return part(np.maximum(-weights, 0), KeyOperation.DELETE), part(np.maximum(weights, 0), KeyOperation.INSERT)


def by_key(rows: pa.Table, keys: Sequence[str], *, upsert: bool = False, table: str | None = None) -> pa.Table:
    """One row for each key, in the order of keys: the new row, or of a deletion the old one; behind it what happened.
    `upsert`: for readers that do not ask whether there was an old row.

    Errors: `InsertedTwice`, `DeletedTwice`, `TwoNewRows`, `TwoOldRows`.
    """
    rows = rows.filter(pc.not_equal(rows.column(WEIGHT), 0))
    weights = _weights(rows)
    _refuse(weights > 1, rows, keys, table, InsertedTwice, "is inserted more than once")
    _refuse(weights < -1, rows, keys, table, DeletedTwice, "is deleted more than once")
    ordering = pa.table([*(comparable(rows.column(key)) for key in keys), pa.array(-weights)], names=[*keys, WEIGHT])
    order = pc.sort_indices(ordering, sort_keys=[(name, "ascending") for name in ordering.column_names])
    ordering, rows, weights = ordering.take(order), rows.take(order), weights[order.to_numpy()]
    # A key's new row comes before its old one; behind the last row there is none of its key.
    same = np.append(same_as_next(ordering.select(list(keys))), False) if len(weights) else np.zeros(0, dtype=np.bool_)
    twice = same & (weights == np.roll(weights, -1))
    _refuse(twice & (weights > 0), rows, keys, table, TwoNewRows, "has two new rows")
    _refuse(twice & (weights < 0), rows, keys, table, TwoOldRows, "has two old rows")
    has_old = same & (weights > 0)
    is_replaced = np.roll(has_old, 1)
    inserted, updated = (KeyOperation.UPSERT,) * 2 if upsert else (KeyOperation.INSERT, KeyOperation.UPDATE)
    operation = np.where(weights < 0, KeyOperation.DELETE.value, np.where(has_old, updated.value, inserted.value))
    found = rows.drop_columns([WEIGHT]).append_column(OPERATION_FIELD, pa.array(operation.tolist(), pa.string()))
    return found.filter(pa.array(~is_replaced))


def _weights(rows: pa.Table) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = rows.column(WEIGHT).to_numpy()
    return found


def _refuse(
    wrong: npt.NDArray[np.bool_],
    rows: pa.Table,
    keys: Sequence[str],
    table: str | None,
    error: Callable[..., EncodeError],
    what: str,
) -> None:
    if wrong.any():
        place = int(np.flatnonzero(wrong)[0])
        values = ", ".join(f"{key}={rows.column(key)[place].as_py()!r}" for key in keys)
        raise error(f"the row of a key {what}", op="encode", table=table, values=values, hint=_HINT)
