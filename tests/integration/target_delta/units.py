"""Rows of three tables in a Delta lake, for units that tests make themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lake import LakeRig
from tests.support.log_rows import Row, relation

A = relation(1, "a", "id v w", key="id")
B = relation(2, "b", "id v", key="id")
LOOSE = relation(3, "loose", "v")


def insert(seqno: int, *values: str | None, of: int = 1) -> Row:
    return Row(seqno=seqno, operation="I", values=values, relation_id=of)


def update(seqno: int, *values: str | None, of: int = 1, unsent: list[int] | None = None) -> Row:
    return Row(seqno=seqno, operation="U", values=values, relation_id=of, unsent=unsent)


def delete(seqno: int, *values: str | None, of: int = 1) -> Row:
    return Row(seqno=seqno, operation="D", values=values, relation_id=of)


@pytest.fixture(name="rig")
def rig_of_three_tables(tmp_path: Path) -> LakeRig:
    return LakeRig(f"delta://{tmp_path}", [A, B, LOOSE], channels=2).begin()
