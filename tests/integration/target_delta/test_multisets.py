"""Tables without a key in a Delta lake: of equal rows as many are there as at the source."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.value_type import ValueType
from airflow_parallel_apply.pipeline.target.delta import applying
from airflow_parallel_apply.pipeline.target.delta.images import image_expression, row_images
from airflow_parallel_apply.pipeline.target.delta.multiset import change_rows
from airflow_parallel_apply.pipeline.target.delta.tables import read_columns
from airflow_parallel_apply.pipeline.target.steps import Replay, Truncate
from tests.support.examples import examples
from tests.support.lake import LakeRig
from tests.support.log_rows import Row, in_order, relation
from tests.support.rig import Rig, execute
from tests.support.variants import gated

BAG = replace(relation(1, "bag", "a b"), replica_identity=ReplicaIdentity.FULL)

TYPES = {
    "double precision": ("float 64", ("0", "-0", "NaN", "Infinity", "-Infinity", "1e-05", "0.1", None)),
    "real": ("float 32", ("0", "-0", "NaN", "1e+10", None)),
    "bigint": ("integer 64", ("0", "9223372036854775807", "-9223372036854775808", None)),
    "numeric(20,3)": ("decimal 20 3", ("0.000", "12345678901234567.890", "-0.001", None)),
    "numeric": ("opaque", ("1", "1.0", "1.00", "NaN", None)),
    "text": ("text", ("", "-", "1:", "a", "a ", "A", "é", "e\u0301", "a'b\"c\\", "a" * 100, None)),
    "bytea": ("bytes", ("\\x", "\\xff", "\\x00", "\\x2d", None)),
    "boolean": ("boolean", ("t", "f", None)),
    "date": ("date", ("0001-01-01", "9999-12-31", "1970-01-01", None)),
    "timestamp": ("timestamp", ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "2020-01-01 00:00:00.01", None)),
    "timestamptz": ("instant", ("1500-01-01 00:00:00+00", "2020-01-01 00:00:00.000001+00", None)),
}  # fmt: skip
WIDE = Relation(
    relation_id=1,
    schema="public",
    table="wide",
    replica_identity=ReplicaIdentity.FULL,
    columns=tuple(
        Column(name=f'c "{place}"', type_name=name, value=ValueType.parse(value))
        for place, (name, (value, _)) in enumerate(TYPES.items())
    ),
)


def insert(seqno: int, *values: str | None, fragno: int = 0) -> Row:
    return Row(seqno=seqno, operation="I", values=values, fragno=fragno)


def delete(seqno: int, *values: str | None, fragno: int = 0) -> Row:
    return Row(seqno=seqno, operation="D", values=values, fragno=fragno)


def change(seqno: int, old: tuple[str | None, ...], new: tuple[str | None, ...]) -> list[Row]:
    """As a log has an update: one row goes, another one comes."""
    left = Row(seqno=seqno, operation="X", values=old)
    return [left, Row(seqno=seqno, operation="K", values=new, fragno=1, old_key=old)]  # type: ignore[arg-type]


@pytest.fixture
def rig(tmp_path: Path) -> LakeRig:
    return LakeRig(f"delta://{tmp_path}", [BAG], channels=2).begin()


@gated
def test_of_equal_rows_as_many_go_as_the_source_deleted(rig: LakeRig) -> None:
    rig.apply(-1, 1, [insert(1, "x", None) for _ in range(5)] + [insert(1, "y", "z")] * 2)
    rig.apply(1, 2, [delete(2, "x", None), delete(2, "x", None), delete(2, "y", "z"), insert(2, "y", "z")])
    assert rig.rows(BAG) == [("x", None)] * 3 + [("y", "z")] * 2
    rig.apply(2, 3, [*change(3, ("x", None), ("y", "z")), delete(3, "x", None), delete(3, "x", None)])
    assert rig.rows(BAG) == [("y", "z")] * 3
    assert rig.table(BAG).version() == 3, "a commit for each unit"


def test_rows_that_the_table_has_not_are_refused_by_table_and_seqno(rig: LakeRig) -> None:
    rig.apply(-1, 1, [insert(1, "x", None)] * 2)
    with pytest.raises(TargetError, match="3 equal rows are to be deleted, and the table has 2 of them") as refused:
        rig.apply(1, 5, [delete(5, "x", None)] * 3)
    assert (refused.value.table, refused.value.seqno) == ("public.bag", 5)
    assert (rig.rows(BAG), rig.seqnos()) == ([("x", None)] * 2, [1, -1])


def test_rows_are_replayed_around_a_truncate(rig: LakeRig) -> None:
    rig.apply(-1, 1, [insert(1, "x", "1")] * 3)
    rig.apply(-1, 1, [], channel=1)
    target = rig.open()
    target.take(None, generation=1, token="all")
    unit = rig.unit(1, 2, claim="all", channel=None)
    before = [delete(2, "x", "1"), *change(2, ("x", "1"), ("y", None))]
    behind = [insert(2, "z", "1", fragno=4), insert(2, "z", "1", fragno=5), delete(2, "z", "1", fragno=6)]
    target.commit(
        unit,
        [
            Replay(rows=lambda: in_order(rig.known.relations, before)),
            Truncate(relation_ids=(1,)),
            Replay(rows=lambda: in_order(rig.known.relations, behind)),
        ],
    )
    assert rig.rows(BAG) == [("z", "1")]


@gated
def test_columns_that_the_source_has_not_stay_with_the_rows_that_stay(rig: LakeRig, tmp_path: Path) -> None:
    rig.apply(-1, 1, [insert(1, "x", "1")] * 3)
    table = rig.table(BAG)
    table.alter.add_columns(DeltaTable(f"{tmp_path}/public/bag").schema().fields[0].__class__("note", "string"))
    table.update(updates={"note": "'theirs'"})
    rig.apply(1, 2, [delete(2, "x", "1")])
    assert rig.rows(BAG) == [("x", "1", "theirs")] * 2


def test_a_deletion_that_meets_another_writer_counts_what_that_one_left(
    rig: LakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading the rows and the commit another channel's unit takes one."""
    rig.apply(-1, 1, [insert(1, "x", None)] * 4)
    real: Callable[..., Any] = change_rows

    def disturbed(*given: Any) -> None:
        monkeypatch.undo()
        rig.apply(-1, 1, [delete(1, "x", None), insert(1, "y", None)], channel=1, claim="beside")
        real(*given)

    monkeypatch.setattr(applying, "change_rows", disturbed)
    rig.apply(1, 2, [delete(2, "x", None)])
    assert rig.rows(BAG) == [("x", None)] * 2 + [("y", None)]


@st.composite
def histories(draw: st.DrawFn) -> list[list[tuple[int, tuple[str | None, ...]]]]:
    """Units of signed rows: plus one comes, minus one goes, of those that are there."""
    dice = random.Random(draw(st.integers(0, 10**9)))
    pool = [tuple(dice.choice(values) for _, values in TYPES.values()) for _ in range(draw(st.integers(1, 6)))]
    for row in tuple(pool):
        # A neighbour, of which one value differs.
        place = dice.randrange(len(row))
        pool.append((*row[:place], dice.choice(list(TYPES.values())[place][1]), *row[place + 1 :]))
    there: list[tuple[str | None, ...]] = []
    units = []
    for _ in range(draw(st.integers(1, 4))):
        unit = []
        for _ in range(draw(st.integers(1, 12))):
            if there and dice.random() < 0.5:
                unit.append((-1, there.pop(dice.randrange(len(there)))))
            else:
                there.append(dice.choice(pool))
                unit.append((1, there[-1]))
        units.append(unit)
    return units


@gated
@settings(max_examples=examples(40), deadline=None)
@given(units=histories())
def test_any_history_leaves_the_rows_that_it_leaves_at_the_source(
    tmp_path_factory: pytest.TempPathFactory, units: list[list[tuple[int, tuple[str | None, ...]]]]
) -> None:
    rig = LakeRig(f"delta://{tmp_path_factory.mktemp('lake')}", [WIDE]).begin()
    expected: Counter[str] = Counter()
    for seqno, unit in enumerate(units):
        rows = [
            insert(seqno, *values, fragno=fragno) if sign > 0 else delete(seqno, *values, fragno=fragno)
            for fragno, (sign, values) in enumerate(unit)
        ]
        rig.apply(seqno - 1, seqno, rows)
        for sign, values in unit:
            expected[repr(tuple(_shown(value) for value in values))] += sign
        assert Counter(_rows_as_texts(rig)) == +expected


def _shown(text: str | None) -> str | None:
    """A number whose exponent Arrow writes otherwise."""
    return {"1e-05": "0.00001", "1e+10": "10000000000"}.get(text or "", text)


def _rows_as_texts(rig: LakeRig) -> list[str]:
    from airflow_parallel_apply.pipeline.encode.columns.texts import texts

    names = [column.name for column in WIDE.columns]
    columns: list[list[str | None]] = [[] for _ in names]
    for batch in read_columns(rig.table(WIDE), WIDE.name, names):
        for place, column in enumerate(batch.columns):
            columns[place] += [_plain(text) for text in texts(column).to_pylist()]
    return [repr(row) for row in zip(*columns, strict=True)]


def _plain(text: str | None) -> str | None:
    return {"1e-05": "0.00001", "1e+10": "10000000000", "-0.0": "-0", "0.0": "0"}.get(text or "", text)


def test_images_differ_where_a_bit_does() -> None:
    import pyarrow as pa

    rows = pa.table({"a": ["1", "", None, "-", "1:"], "b": ["", "1", "-", None, ""]})
    assert len(set(row_images(rows.to_batches()[0].columns).to_pylist())) == 5
    zeros = row_images([pa.array([0.0, -0.0, float("nan"), float("nan"), None])]).to_pylist()
    assert [zeros.index(one) for one in zeros] == [0, 1, 2, 2, 4]
    assert image_expression(rows.schema, "t").count("CASE") == 2


@gated
@pytest.mark.timeout(200)
def test_a_source_s_multisets_are_followed(source_dsn: str, ledger_dsn: str, tmp_path: Path) -> None:
    execute(
        source_dsn,
        "CREATE TABLE bag (a numeric, b text, c double precision, d bytea, e timestamptz)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
    )
    config = PipelineConfig(
        pipeline="demo", log_url=str(tmp_path / "log"), start=Start.COPY, channels=2, ddl=DdlPolicy.APPLY
    )
    (tmp_path / "lake").mkdir()
    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=f"delta://{tmp_path}/lake", ledger_dsn=ledger_dsn)
    rig.write("INSERT INTO bag SELECT i % 3, 'x', 'NaN', '\\x00', '2020-01-01' FROM generate_series(1, 30) i")
    rig.prepare()
    rig.write(
        "DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag WHERE a = 1 LIMIT 4)",
        "INSERT INTO bag VALUES (1.0, NULL, 0, NULL, NULL), (1.00, NULL, '-0', NULL, NULL)",
        "INSERT INTO bag VALUES (1.00, NULL, 0, NULL, NULL)",
        "UPDATE bag SET b = repeat('y', 5000) WHERE ctid IN (SELECT ctid FROM bag WHERE a = 2 LIMIT 5)",
        "DELETE FROM bag WHERE c = 0 AND a::text = '1.00' AND c::text = '-0'",
        "ALTER TABLE bag ADD COLUMN note text",
        "UPDATE bag SET note = 'n' WHERE a = 0",
        "DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag WHERE a = 0 LIMIT 3)",
    )
    rig.run()
    assert rig.comparison().equal, rig.comparison()
    rig.transaction(
        "DELETE FROM bag WHERE a = 2", "TRUNCATE bag", "INSERT INTO bag SELECT 7 FROM generate_series(1, 5)"
    )
    rig.write("DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag LIMIT 2)")
    rig.run()
    assert rig.comparison().equal, rig.comparison()
    assert len(DeltaTable(f"{tmp_path}/lake/public/bag").to_pyarrow_table()) == 3
