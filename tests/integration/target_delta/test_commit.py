"""Units in a Delta lake: their rows, exactly once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.fs import DeltaStorageHandler

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import StagingLost, TargetError
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.delta import applying, tables
from airflow_parallel_apply.pipeline.target.delta.merge import merge
from airflow_parallel_apply.pipeline.target.steps import Merge, Redefine, Truncate
from tests.integration.target_delta.units import LOOSE, A, B, delete, insert, rig_of_three_tables, update  # noqa: F401  # a fixture
from tests.support.lake import LakeRig
from tests.support.log_rows import Row, relation
from tests.support.variants import gated


def test_net_changes_of_several_tables_are_merged_and_the_position_moves(rig: LakeRig) -> None:
    rig.apply(-1, 3, [insert(1, "1", "a", "x"), insert(2, "2", "b", None), insert(3, "7", "y", of=2)])
    rig.apply(3, 6, [update(4, "1", "c", "z"), delete(5, "2", None, None), insert(6, "3", "d", "u")])
    assert rig.rows(A) == [("1", "c", "z"), ("3", "d", "u")]
    assert rig.rows(B) == [("7", "y")]
    assert rig.seqnos() == [6, -1]
    assert rig.staged_files() == []


def test_a_value_that_was_not_sent_stays_that_of_the_row(rig: LakeRig) -> None:
    rig.apply(-1, 1, [insert(1, "1", "a", "large"), insert(1, "2", "b", "other")])
    rig.apply(1, 2, [update(2, "1", "c", None, unsent=[2]), update(2, "2", "d", None)])
    assert rig.rows(A) == [("1", "c", "large"), ("2", "d", None)]


def test_a_value_with_separators_of_lines_is_one_value(rig: LakeRig) -> None:
    value = "a\u2028b\u2029c\u0085d\x1ee"
    rig.apply(-1, 1, [insert(1, "1", value, value)])
    assert rig.rows(A) == [("1", value, value)]


def test_a_table_without_a_key_keeps_equal_rows(rig: LakeRig) -> None:
    rig.apply(-1, 1, [insert(1, "a", of=3), insert(1, "a", of=3), insert(1, None, of=3)])
    assert rig.rows(LOOSE) == [("a",), ("a",), (None,)]


def test_a_truncate_lies_between_what_comes_before_it_and_behind_it(rig: LakeRig) -> None:
    rig.apply(-1, 1, [insert(1, "1", "a", "x")])
    rig.apply(-1, 1, [], channel=1)
    target = rig.open()
    target.take(None, generation=1, token="all")
    unit = rig.unit(1, 2, claim="all", channel=None)
    staged = rig.stage(unit, [insert(2, "1", "b", "y"), insert(2, "9", "b", of=2)])
    target.commit(unit, [Truncate(relation_ids=(1, 2)), Merge(staged)])
    assert rig.rows(A) == [("1", "b", "y")]
    assert rig.rows(B) == [("9", "b")]
    assert rig.seqnos() == [2, 2]


def test_a_unit_that_adds_a_column_looks_at_the_others_as_well(tmp_path: Path) -> None:
    """Somebody has given one another type since the run began, and a merge would cast."""
    older, newer = relation(1, "a", "id v", key="id"), relation(2, "a", "id v more", key="id")
    more = replace(newer.columns[2], fill="NULL", number=3)
    columns = [
        tuple(replace(one, number=number) for number, one in enumerate(each.columns[:2], 1)) for each in (older, newer)
    ]
    older, newer = replace(older, columns=columns[0]), replace(newer, columns=(*columns[1], more))
    rig = LakeRig(f"delta://{tmp_path}", [older])
    rig.begin()
    rig.known.relations[2] = newer
    rig.apply(-1, 1, [insert(1, "1", "2")])
    table = rig.table(older)
    rows = table.to_pyarrow_table()
    write_deltalake(
        table, rows.set_column(1, "v", rows.column("v").cast(pa.int32())), mode="overwrite", schema_mode="overwrite"
    )
    target = rig.open()
    target.take(None, generation=1, token="all")
    unit = rig.unit(1, 2, claim="all", channel=None)
    redefine = Redefine(older_id=1, newer_id=2, ddl=DdlPolicy.APPLY)
    staged = LakeRig.stage(replace(rig, relations=[older, newer]), unit, [insert(2, "2", "3", None, of=2)])
    with pytest.raises(TargetError, match=r"column v of public\.a is int32"):
        target.commit(unit, [redefine, Merge(staged)])


@gated
@pytest.mark.parametrize("is_maintained", [False, True], ids=["truncated twice", "emptied, and maintained"])
def test_a_truncate_that_finds_no_row_is_there_as_any_other_change(rig: LakeRig, is_maintained: bool) -> None:
    rig.apply(-1, 1, [insert(1, "1", "a", "x")])
    rig.apply(-1, 1, [], channel=1)

    def truncate(after: int, times: int) -> None:
        target = rig.open()
        target.take(None, generation=1, token="all")
        target.commit(rig.unit(after, after + 1, claim="all", channel=None), [Truncate(relation_ids=(1,))] * times)

    truncate(1, 1 if is_maintained else 2)
    if is_maintained:
        rig.table(A).alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    truncate(2, 1)
    rig.apply(3, 4, [insert(4, "3", "c", "z")])
    assert rig.rows(A) == [("3", "c", "z")]
    assert rig.seqnos() == [4, 3]


@gated
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (update(5, "9", "v", "w"), "key 9: the row that the change needs to find is not in the table"),
        (delete(5, "9", None, None), "key 9: the row that the change needs to find is not in the table"),
        (insert(5, "1", "v", "w"), "key 1: the row that the change needs to insert is in the table already"),
    ],
)
def test_a_change_that_does_not_fit_is_refused_by_its_key_and_nothing_happened(
    rig: LakeRig, change: Row, says: str
) -> None:
    rig.apply(-1, 1, [insert(1, "1", "a", "x")])
    with pytest.raises(TargetError, match=says) as refused:
        rig.apply(1, 5, [change, insert(5, "4", "a", "x")])
    assert (refused.value.table, refused.value.seqno) == ("public.a", 5)
    assert rig.rows(A) == [("1", "a", "x")]
    assert rig.seqnos() == [1, -1]
    rig.apply(1, 5, [insert(5, "4", "a", "x")])
    assert rig.seqnos() == [5, -1]


def test_a_unit_that_one_of_its_tables_refuses_goes_on_when_that_is_corrected(rig: LakeRig) -> None:
    rig.apply(-1, 1, [insert(1, "1", "a", "x")])
    changes = [update(2, "1", "b", "x"), update(2, "5", "b", of=2)]
    for token in ("t", "next"):
        with pytest.raises(TargetError, match="is decided, perhaps in some of its tables already") as refused:
            rig.apply(1, 2, changes, claim=token)
        assert refused.value.table == "public.b"
        assert rig.seqnos() == [1, -1]
    write_deltalake(rig.table(B), pa.table({"id": ["5"], "v": ["a"]}), mode="append")
    rig.apply(1, 2, changes, claim="another")
    assert (rig.rows(A), rig.rows(B), rig.seqnos()) == ([("1", "b", "x")], [("5", "b")], [2, -1])


def test_what_somebody_else_writes_meanwhile_stays(rig: LakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    real = merge

    def disturbed(table: DeltaTable, *args: object, **options: object) -> None:
        monkeypatch.undo()
        write_deltalake(rig.table(A), pa.table({"id": ["8"], "v": ["theirs"], "w": ["x"]}), mode="append")
        real(table, *args, **options)  # type: ignore[arg-type]

    rig.apply(-1, 0, [insert(0, "1", "0", "x")])
    monkeypatch.setattr(applying, "merge", disturbed)
    rig.apply(0, 1, [update(1, "1", "a", "x")])
    assert rig.rows(A) == [("1", "a", "x"), ("8", "theirs", "x")]


def test_positions_that_were_set_back_without_their_tables_are_refused(rig: LakeRig) -> None:
    rig.apply(-1, 1, [insert(1, "1", "a", "x")])
    before = DeltaTable(rig.lake.uri("_parallel_apply", "demo", "positions")).version()
    rig.apply(1, 4, [update(4, "1", "b", "x")])
    DeltaTable(rig.lake.uri("_parallel_apply", "demo", "positions")).restore(before)
    with pytest.raises(TargetError, match="has the rows of channel 0 up to seqno 4, and its position is 1"):
        rig.apply(1, 3, [update(3, "1", "c", "x")])


def test_a_pipeline_that_begins_anew_is_not_taken_for_its_former_life(rig: LakeRig) -> None:
    rig.apply(-1, 9, [insert(1, "1", "a", "x")])
    rig.open().drop(force=False)
    target = rig.open()
    target.migrate()
    # As `prepare` does, before a run owns it.
    target.lay_out(log_id="log", routing=Routing(channels=2), generation=0)
    target.own(1)
    rig.apply(-1, 3, [insert(1, "2", "b", "x")])
    assert [row[0] for row in rig.rows(A)] == ["1", "2"]


def test_what_was_staged_and_is_gone_is_staged_again(rig: LakeRig) -> None:
    target = rig.open()
    target.take(0, generation=1, token="t")
    unit = rig.unit(-1, 1)
    staged = rig.stage(unit, [insert(1, "1", "a", "x")])
    for path in rig.staged_files():
        path.unlink()
    with pytest.raises(StagingLost):
        target.commit(unit, [Merge(staged)])
    rig.apply(-1, 1, [insert(1, "1", "a", "x")])
    assert rig.seqnos() == [1, -1]


def test_a_commit_on_a_disk_is_there_with_all_folders_that_are_on_the_way_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(tables, "_sync", synced.append)
    rig = LakeRig(f"delta://{tmp_path}/lake", [A]).begin()
    rig.apply(-1, 1, [insert(1, "1", "a", "x")])
    own = tmp_path / "lake/_parallel_apply/demo"
    staged = {path for path in synced if own / "staged" in path.parents and not path.suffix}
    assert {own / "staged", own, own.parent, tmp_path / "lake/public/a", tmp_path / "lake/public"} <= {*synced}
    assert {len(path.relative_to(own).parts) for path in staged} == {2, 3}


def test_positions_are_read_into_no_buffers_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's threads let go of such a buffer when they please, and abort an interpreter that is about to end."""
    opened: list[str] = []
    monkeypatch.setattr(DeltaStorageHandler, "open_input_file", lambda _self, path: opened.append(path))
    rig = LakeRig(f"delta://{tmp_path}", [A]).begin()
    rig.apply(-1, 0, [insert(0, "1", "a", "x")])
    assert rig.seqnos() == [0]
    assert opened == []
