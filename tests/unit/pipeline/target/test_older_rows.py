"""Where the values of a newer definition's columns are in rows of an older one."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import PlanError
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.value_type import ValueKind, ValueType
from airflow_parallel_apply.pipeline.target.older_rows import holds, origin_of, under_skipped
from airflow_parallel_apply.pipeline.target.steps import Redefine, Replay


def definition(relation_id: int, *columns: tuple[str, int | None]) -> Relation:
    return Relation(
        relation_id=relation_id,
        schema="public",
        table="t",
        replica_identity=ReplicaIdentity.KEY,
        columns=tuple(Column(name=name, type_name="integer", number=number) for name, number in columns),
    )


def test_a_renamed_column_whose_number_only_its_neighbours_tell_is_found() -> None:
    older = definition(1, ("a", 1), ("b", None), ("c", 3))
    newer = definition(2, ("a", 1), ("bb", 2), ("c", 3))
    assert origin_of(older, newer).places == (0, 1, 2)
    assert origin_of(
        definition(3, ("a", 1), ("b", 2), ("c", 3)), definition(4, ("a", 1), ("bb", None), ("c", 3))
    ).places == (
        0,
        1,
        2,
    )


def test_an_integer_is_held_by_a_longer_one_and_by_no_oid() -> None:
    short, long = (
        Column(name="c", type_name=name, kind=KeyKind.INTEGER, value=ValueType(kind=ValueKind.INTEGER, size=size))
        for name, size in (("integer", 32), ("bigint", 64))
    )
    oid = Column(name="c", type_name="oid", value=long.value)
    assert holds(long, short)
    assert not holds(short, long)
    assert not holds(oid, short)
    assert not holds(long, oid)


def test_a_decimal_holds_the_integers_whose_digits_it_has() -> None:
    integer = Column(name="c", type_name="integer", kind=KeyKind.INTEGER, value=ValueType.parse("integer 32"))
    for precision, is_held in ((10, True), (9, False)):
        name, value = f"numeric({precision},0)", ValueType.parse(f"decimal {precision} 0")
        assert holds(Column(name="c", type_name=name, kind=KeyKind.DECIMAL, value=value), integer) is is_held
    assert holds(Column(name="c", type_name="text", kind=KeyKind.TEXT, value=ValueType.parse("text")), integer)


def test_a_number_that_became_a_text_is_the_same_unless_somebody_changed_the_table_by_hand() -> None:
    """A statement that is skipped may have had a USING."""
    number = Column(name="c", type_name="integer", kind=KeyKind.INTEGER, number=1, value=ValueType.parse("integer 32"))
    text = Column(name="c", type_name="text", kind=KeyKind.TEXT, number=1, value=ValueType.parse("text"))
    long = Column(name="c", type_name="bigint", kind=KeyKind.INTEGER, number=1, value=ValueType.parse("integer 64"))
    known = {place: replace(definition(place), columns=(one,)) for place, one in enumerate((number, text, long))}
    assert origin_of(known[0], known[1]).places == (0,)
    for newer, says in ((2, None), (1, "nothing tells what they have in c since")):
        redefine = Redefine(older_id=0, newer_id=newer, ddl=DdlPolicy.SKIP)
        rows = pa.RecordBatch.from_pylist([inserted("7")], schema=ROWS)
        replay, _ = under_skipped([Replay(lambda rows=rows: iter([rows])), redefine], known.__getitem__)
        assert isinstance(replay, Replay)
        with pytest.raises(PlanError, match=says) if says else nullcontext():
            assert [batch.num_rows for batch in replay.rows()] == [1]


def inserted(values: str) -> dict[str, Any]:
    """A row of the log, under the first definition."""
    numbers = dict.fromkeys(
        ("seqno", "fragno", "relation_id", "bucket", "key_order", "previous_seqno", "next_seqno"), 0
    )
    return {**numbers, "operation": "I", "values": values, "unsent": None, "old_key": None}
