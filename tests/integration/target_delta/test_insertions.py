"""Units of insertions alone: appended where the table has none of their keys, and refused where it has one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.target.delta import applying
from airflow_parallel_apply.pipeline.target.delta.merge import append
from tests.support.lake import LakeRig
from tests.support.log_rows import Row, relation

A = relation(1, "a", "id v", key="id")
PAIRS = relation(2, "pairs", "x y v", key="x y")


def insert(seqno: int, *values: str | None, of: int = 1) -> Row:
    return Row(seqno=seqno, operation="I", values=values, relation_id=of)


@pytest.fixture
def rig(tmp_path: Path) -> LakeRig:
    return LakeRig(f"delta://{tmp_path}", [A, PAIRS], channels=2).begin()


def operations(rig: LakeRig) -> list[str]:
    """The operations of the commits to `a`, newest first."""
    return [str(one["operation"]) for one in rig.table(A).history()]


def test_insertions_are_appended_and_everything_else_is_merged(rig: LakeRig) -> None:
    rig.apply(-1, 1, [insert(1, "1", "a"), insert(1, "2", "b")])
    rig.apply(1, 2, [insert(2, "3", "c"), insert(2, "4", None)])
    rig.apply(2, 3, [insert(3, "5", "e"), Row(seqno=3, operation="D", values=("1", None))])
    assert [row[0] for row in rig.rows(A)] == ["2", "3", "4", "5"]
    assert operations(rig) == ["MERGE", "WRITE", "WRITE", "CREATE TABLE"]


def test_an_insertion_whose_key_somebody_else_wrote_is_refused_by_it(rig: LakeRig) -> None:
    write_deltalake(rig.table(A), pa.table({"id": ["7"], "v": ["theirs"]}), mode="append")
    with pytest.raises(TargetError, match="key 7: the row that the change needs to insert is in the table already"):
        rig.apply(-1, 1, [insert(1, "1", "a"), insert(1, "7", "ours")])
    assert (rig.rows(A), rig.seqnos()) == ([("7", "theirs")], [-1, -1])


def test_a_key_that_somebody_else_writes_behind_the_look_is_found_all_the_same(
    rig: LakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append is from the version that was looked at, or is none."""
    real = append

    def disturbed(*given: Any) -> None:
        monkeypatch.undo()
        write_deltalake(rig.table(A), pa.table({"id": ["1"], "v": ["theirs"]}), mode="append")
        real(*given)

    monkeypatch.setattr(applying, "append", disturbed)
    with pytest.raises(TargetError, match="key 1: the row that the change needs to insert"):
        rig.apply(-1, 1, [insert(1, "1", "a")])
    assert rig.rows(A) == [("1", "theirs")]


def test_keys_of_several_columns_are_told_apart_by_all_of_them(rig: LakeRig) -> None:
    rig.apply(-1, 1, [insert(1, "1", "2", "a", of=2), insert(1, "12", "", "b", of=2)])
    rig.apply(1, 2, [insert(2, "1", "1", "c", of=2), insert(2, "", "12", "d", of=2)])
    assert len(rig.rows(PAIRS)) == 4
    with pytest.raises(TargetError, match="key 12\t: the row that the change needs to insert"):
        rig.apply(2, 3, [insert(3, "12", "", "e", of=2)])


def test_a_table_with_a_column_of_its_own_has_it_null_in_appended_rows(rig: LakeRig) -> None:
    rows = pa.table({"note": ["n"], "id": ["0"], "v": ["a"]})
    write_deltalake(rig.table(A), rows, mode="overwrite", schema_mode="overwrite")
    rig.apply(-1, 1, [insert(1, "1", "b")])
    assert rig.rows(A) == [("n", "0", "a"), (None, "1", "b")]
