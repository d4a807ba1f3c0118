"""Rows of the log from any source's values: here one that has them as columns, as a binlog's reader would."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.errors import SourceError
from airflow_parallel_apply.pipeline.model.change import Column, Operation, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.partition.key import buckets, table_bucket
from airflow_parallel_apply.pipeline.source.cells import NULL, TEXT, UNSENT, Cells
from airflow_parallel_apply.pipeline.source.rows import NO_RELATION, Changes, RowBuilder
from tests.log_batches import spelled

Row = tuple[object, ...]
LEFT_OUT = object()
"""A value that the source did not send."""


def relation(*kinds: KeyKind | None, identity: ReplicaIdentity = ReplicaIdentity.KEY) -> Relation:
    """A kind for each column of the key, None for one beside it."""
    columns = tuple(
        Column(name=f"c{index}", type_name="its own", kind=kind or KeyKind.TEXT, key=kind is not None)
        for index, kind in enumerate(kinds)
    )
    canonical = KeyKind.NOT_CANONICAL not in kinds
    return Relation(
        relation_id=7, schema="shop", table="t", replica_identity=identity, columns=columns, canonical=canonical
    )


ORDERS = relation(KeyKind.DECIMAL, None, None)


def cells_of(rows: list[Row]) -> Cells:
    """Row by row."""
    values = [value for row in rows for value in row]
    status = [NULL if value is None else UNSENT if value is LEFT_OUT else TEXT for value in values]
    texts = pa.array([value if isinstance(value, str) else None for value in values], pa.string())
    return Cells(np.array(status, dtype=np.uint8), texts, np.arange(len(values)))


def built(
    table: Relation,
    operation: Operation,
    *,
    old: list[Row] | None = None,
    new: list[Row] | None = None,
    whole: bool = False,
) -> list[dict[str, Any]]:
    """One change a message, all in transaction 3."""
    width, count = len(table.columns), len(old or new or ())
    lines = np.arange(count * width).reshape(count, width)
    changes = Changes(
        relation=table,
        operation=operation,
        messages=np.arange(count),
        old=None if old is None else lines,
        new=None if new is None else lines + (count * width if old is not None else 0),
        is_whole=whole,
    )
    builder = RowBuilder(cells_of([*(old or ()), *(new or ())]), count, [changes])
    made = int(builder.rows_of_message.sum())
    rows, _, key_unsent = builder.build(np.full(made, 3), np.arange(made))
    found = [spelled(row) for row in rows.to_pylist()]
    return [{**row, "key_unsent": bool(mark)} for row, mark in zip(found, key_unsent, strict=True)]


def told(row: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def test_equal_keys_have_one_text_and_one_bucket() -> None:
    rows = built(ORDERS, Operation.INSERT, new=[("1.50", "a", None), ("1.5", "b", "c")])
    assert [told(row, "operation", "key", "values") for row in rows] == [
        ("I", "1.5", ["1.50", "a", None]),
        ("I", "1.5", ["1.5", "b", "c"]),
    ]
    assert {row["bucket"] for row in rows} == set(buckets("shop.t", pa.array(["1.5"])).tolist())
    assert len({row["key_order"] for row in rows}) == 1


def test_a_delete_has_its_key_alone() -> None:
    (row,) = built(ORDERS, Operation.DELETE, old=[("1", "a", "b")])
    assert told(row, "operation", "key", "values", "unsent") == ("D", "1", ["1", None, None], None)


def test_an_update_that_moves_a_key_leaves_one_and_arrives_at_another() -> None:
    left, arrived = built(ORDERS, Operation.UPDATE, old=[("1", None, None)], new=[("2", "a", LEFT_OUT)])
    assert told(left, "operation", "key", "values", "old_key") == ("X", "1", ["1", None, None], None)
    assert told(arrived, "operation", "key", "values", "unsent", "old_key", "key_unsent") == (
        "K", "2", ["2", "a", None], [2], ["1"], True,
    )  # fmt: skip
    assert left["fragno"] + 1 == arrived["fragno"]


def test_an_old_row_that_came_whole_has_what_the_new_one_lacks() -> None:
    (row,) = built(ORDERS, Operation.UPDATE, old=[("1", "a", "long")], new=[("1", "b", LEFT_OUT)], whole=True)
    assert told(row, "operation", "values", "unsent") == ("U", ["1", "b", "long"], None)
    (row,) = built(ORDERS, Operation.UPDATE, old=[("1", "a", "long")], new=[("1", "b", LEFT_OUT)])
    assert told(row, "operation", "values", "unsent") == ("U", ["1", "b", None], [2])


def test_rows_that_are_told_apart_by_all_their_values_lie_in_one_bucket() -> None:
    bag = relation(None, None, identity=ReplicaIdentity.FULL)
    left, arrived = built(bag, Operation.UPDATE, old=[("1", "long")], new=[("2", LEFT_OUT)], whole=True)
    assert told(left, "operation", "key", "values") == ("X", None, ["1", "long"])
    assert told(arrived, "operation", "values", "old_key") == ("K", ["2", "long"], ["1", "long"])
    assert {left["bucket"], arrived["bucket"]} == {table_bucket("shop.t")}


def test_a_table_whose_key_has_no_canonical_text_lies_in_one_bucket() -> None:
    rows = built(relation(KeyKind.NOT_CANONICAL), Operation.INSERT, new=[("24 hours",), ("1 day",)])
    assert {row["bucket"] for row in rows} == {table_bucket("shop.t")}
    assert [row["key"] for row in rows] == ["24 hours", "1 day"]


def test_rows_without_a_key_can_only_be_inserted() -> None:
    bare = relation(None)
    assert told(*built(bare, Operation.INSERT, new=[("a",)]), "key", "values") == (None, ["a"])
    with pytest.raises(SourceError, match="without a usable key"):
        built(bare, Operation.UPDATE, new=[("a",)])
    with pytest.raises(SourceError, match="give the table a primary key without g, which the source does not send"):
        built(replace(bare, computed=("g",)), Operation.UPDATE, new=[("a",)])


def test_a_statement_has_a_row_for_each_table() -> None:
    builder = RowBuilder(cells_of([]), 2, [])
    builder.add_statement(0, Operation.TRUNCATE, (4, 5), (b"cascade",))
    builder.add_statement(1, Operation.MESSAGE, (NO_RELATION,), (b"ddl", "DROP TABLE ü".encode()))
    rows, _, _ = builder.build(np.array([3, 3, 4]), np.array([0, 1, 0]))
    assert [told(spelled(row), "relation_id", "operation", "values") for row in rows.to_pylist()] == [
        (4, "T", ["cascade"]),
        (5, "T", ["cascade"]),
        (NO_RELATION, "M", ["ddl", "DROP TABLE ü"]),
    ]
