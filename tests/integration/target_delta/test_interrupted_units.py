"""Units in a Delta lake whose lanes die, or lose their claim, on the way: they are there once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_parallel_apply.pipeline.errors import OwnershipLost, TargetError
from airflow_parallel_apply.pipeline.model.epoch import Merging
from airflow_parallel_apply.pipeline.target.delta import applying, positions
from airflow_parallel_apply.pipeline.target.delta.known import KnownTable
from airflow_parallel_apply.pipeline.target.delta.merge import merge
from airflow_parallel_apply.pipeline.target.delta.state import Decided, State
from airflow_parallel_apply.pipeline.target.steps import Merge
from tests.integration.target_delta.units import LOOSE, A, B, delete, insert, rig_of_three_tables, update  # noqa: F401  # a fixture
from tests.support.lake import LakeRig
from tests.support.log_rows import Row
from tests.support.variants import gated


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], list[str]]:
    """Dies right after so many commits in the lake are made, or before they are synced; tells those that were made."""
    made: list[str] = []

    def arm(number: int | None) -> list[str]:
        made.clear()

        def sync(lake: object, uri: str, version: int) -> None:
            made.append(f"{Path(uri).name} {version}")
            if len(made) == number:
                raise Killed

        for module in (applying, positions):
            monkeypatch.setattr(module, "sync", sync)
        return made

    return arm


@pytest.mark.parametrize(
    "ends",
    [
        "another unit",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("the next claim", "the next owner", "all channels")),
    ],
)
def test_a_lane_that_dies_behind_any_commit_leaves_a_unit_that_is_there_once(
    rig: LakeRig, killed_at: Callable[[int | None], list[str]], ends: str
) -> None:
    rig.apply(-1, 0, [insert(0, "1", "0", "x"), insert(0, "1", "0", of=2)])
    seqno, number = 0, 0
    while True:
        number += 1
        rows = [update(seqno + 1, "1", str(number), None, unsent=[2]), update(seqno + 1, "1", str(number), of=2)]
        rows += [insert(seqno + 1, f"n{number}", of=3), insert(seqno + 1, f"k{number}", "v", "w")]
        made = killed_at(number)
        with suppress(Killed):
            rig.apply(seqno, seqno + 1, rows, claim=f"dying {number}")
        is_over = len(made) < number
        killed_at(None)
        if ends == "the next owner":
            rig.generation += 1
            rig.open().own(rig.generation)
        if ends == "all channels":
            rig.open().take(None, generation=rig.generation, token="all")
        last = seqno + 2 if ends == "another unit" else seqno + 1
        target = rig.open()
        reached = target.take(0, generation=rig.generation, token=f"next {number}").seqno
        assert reached in (seqno, seqno + 1)
        if reached < last:
            unit = rig.unit(reached, last, claim=f"next {number}")
            target.commit(unit, [Merge(rig.stage(unit, rows if reached == seqno else []))])
        seqno = last
        assert rig.seqnos()[0] == seqno
        assert rig.rows(B) == [("1", str(number))]
        assert rig.rows(A)[0] == ("1", str(number), "x")
        assert len(rig.rows(A)) == number + 1
        assert sorted(rig.rows(LOOSE)) == sorted((f"n{one}",) for one in range(1, number + 1))
        assert rig.staged_files() == []
        if is_over:
            break
    assert number == 7, "claim, decision, three tables, position; and one that outlives all"


@pytest.mark.parametrize("ahead", [0, 1], ids=["the first channel is ahead", "the last channel is ahead"])
def test_a_unit_of_channels_that_stand_apart_is_there_once_wherever_its_lane_dies(
    rig: LakeRig, killed_at: Callable[[int | None], list[str]], ahead: int
) -> None:
    """The channel that is ahead has committed to the unit's end by itself: it says nothing of the others' rows."""
    number, seqno, is_over = 0, -1, False
    while not is_over:
        number += 1
        seqno, before = seqno + 1, seqno
        rig.apply(before, seqno, [insert(seqno, f"ahead {seqno}", "v", "w")], channel=ahead)
        rows = [insert(seqno, f"behind {seqno}", "v", "w"), insert(seqno, f"behind {seqno}", of=3)]

        def meet(claim: str, *, after: int = before, last: int = seqno, rows: Sequence[Row] = rows) -> None:
            target = rig.open()
            if target.take(None, generation=1, token=claim).seqno < last:
                standing = tuple(last if channel == ahead else after for channel in range(2))
                unit = replace(rig.unit(after, last, claim=claim, channel=None), kind=Merging(standing))
                target.commit(unit, [Merge(rig.stage(unit, rows))])

        made = killed_at(number)
        with suppress(Killed):
            meet("dying")
        is_over = len(made) < number
        killed_at(None)
        assert rig.open().pending().decided in (None, (seqno, seqno))
        meet("next")
        assert rig.seqnos() == [seqno, seqno]
        assert len(rig.rows(A)) == 2 * number
        assert len(rig.rows(LOOSE)) == number
    assert number == 6, "claim, decision, two tables, positions; and one that outlives all"


def test_a_zombie_is_refused_by_the_target_and_changes_nothing(rig: LakeRig) -> None:
    zombie = rig.open()
    zombie.take(0, generation=1, token="zombie")
    unit = rig.unit(-1, 5, claim="zombie")
    staged = rig.stage(unit, [insert(5, "1", "zombie", "x")])
    rig.open().take(0, generation=1, token="next")
    with pytest.raises(OwnershipLost):
        zombie.commit(unit, [Merge(staged)])
    rig.apply(-1, 2, [insert(2, "1", "a", "x")], claim="next")
    with pytest.raises(OwnershipLost):
        zombie.commit(unit, [Merge(staged)])
    assert rig.rows(A) == [("1", "a", "x")]


def test_an_owner_of_a_former_generation_is_refused(rig: LakeRig) -> None:
    former = rig.open()
    former.take(0, generation=1, token="t")
    unit = rig.unit(-1, 5)
    staged = rig.stage(unit, [insert(5, "1", "a", "x")])
    rig.open().own(2)
    with pytest.raises(OwnershipLost):
        former.commit(unit, [Merge(staged)])
    with pytest.raises(OwnershipLost):
        former.take(0, generation=1, token="t2")
    assert (rig.rows(A), rig.seqnos()) == ([], [-1, -1])


@gated
def test_a_merge_that_stands_still_while_its_successor_finishes_commits_nothing(
    rig: LakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands between its decision and its first table, with that table's version read."""
    rig.apply(-1, 0, [insert(0, "1", "0", "x")])
    real = merge

    def stand_still(table: DeltaTable, *args: object, **options: object) -> None:
        monkeypatch.undo()
        rig.apply(1, 2, [update(2, "1", "2", "y")], claim="successor")
        real(table, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(applying, "merge", stand_still)
    rig.apply(0, 1, [update(1, "1", "1", "x")], claim="zombie")
    assert rig.rows(A) == [("1", "2", "y")]
    assert rig.seqnos() == [2, -1]
    assert rig.table(A).version() == 3


def test_a_decision_of_a_lane_that_sleeps_is_not_taken_back_by_others(
    rig: LakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.apply(-1, 1, [insert(1, "1", "a", of=2)])
    apply = applying.Applier.apply

    def refused(applier: applying.Applier, state: State, decided: Decided) -> list[KnownTable]:
        monkeypatch.undo()
        rig.table(B).alter.add_constraint({"refuses": "id <> '9'"})
        with pytest.raises(TargetError, match=r"is decided.*failed validation"):
            rig.open().own(2)
        rig.table(B).alter.drop_constraint("refuses")
        return apply(applier, state, decided)

    monkeypatch.setattr(applying.Applier, "apply", refused)
    rig.apply(1, 2, [insert(2, "9", "b", of=2)])
    assert rig.rows(B) == [("1", "a"), ("9", "b")]
    assert rig.seqnos() == [2, -1]
    rig.generation = 2
    rig.apply(2, 3, [insert(3, "10", "c", of=2)])
    assert rig.seqnos() == [3, -1]


def test_a_repeated_commit_changes_nothing(rig: LakeRig) -> None:
    target = rig.open()
    target.take(0, generation=1, token="t")
    unit = rig.unit(-1, 1)
    staged = rig.stage(unit, [insert(1, "1", "a", "x"), insert(1, "a", of=3)])
    for _ in range(3):
        target.commit(unit, [Merge(staged)])
    assert (rig.rows(A), rig.rows(LOOSE), rig.table(A).version()) == ([("1", "a", "x")], [("a",)], 1)
