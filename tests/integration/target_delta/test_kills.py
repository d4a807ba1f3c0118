"""Lanes into a Delta lake, processes of their own, that are killed at random moments."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.lake import LakeRig
from tests.support.lake_lane import BAG, LAST, LOOSE, TABLES, A, B
from tests.support.variants import GATED


def lane(rig: LakeRig) -> subprocess.Popen[str]:
    """It runs when its first claim is told."""
    command = [sys.executable, "-m", "tests.support.lake_lane", rig.url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.parametrize("kills", [pytest.param(4, marks=GATED), pytest.param(20, marks=pytest.mark.long)])
def test_a_lake_is_exact_whenever_its_lanes_are_killed(tmp_path: Path, kills: int) -> None:
    rig = LakeRig(f"delta://{tmp_path}", TABLES).begin()
    _strike(rig, kills)
    expected = sorted([("0", str(LAST)), *((f"k{seqno}", str(seqno)) for seqno in range(LAST + 1))])
    assert rig.rows(A) == rig.rows(B) == expected
    assert sorted(rig.rows(LOOSE)) == sorted((str(seqno),) for seqno in range(LAST + 1))
    assert rig.rows(BAG) == [("x",)] * (LAST + 1)


@pytest.mark.long
@pytest.mark.parametrize("kills", [4, 20])
def test_a_feed_has_each_change_once_whenever_its_lanes_are_killed(tmp_path: Path, kills: int) -> None:
    rig = LakeRig(f"delta://{tmp_path}?feed=true", TABLES).begin()
    _strike(rig, kills)
    for relation_, each in ((A, 2), (B, 2), (LOOSE, 1)):
        found = Counter(rig.table(relation_).to_pyarrow_table().column("_seqno").to_pylist())
        assert found == dict.fromkeys(range(LAST + 1), each)


def _strike(rig: LakeRig, kills: int) -> None:
    """Lanes that are killed, and one that ends; nothing is left staged."""
    chance = random.Random(kills)
    ends = []
    for _ in range(kills):
        killed = lane(rig)
        try:
            killed.wait(chance.uniform(0.0, 0.4))
        except subprocess.TimeoutExpired:
            killed.kill()
        ends.append(killed.wait())
    assert -signal.SIGKILL in ends
    assert lane(rig).wait(240) == 0
    assert rig.seqnos() == [LAST]
    rig.open().own(2)
    assert rig.staged_files() == []
