"""Tables that somebody restores, makes anew or puts back: they lack rows that the positions say they have."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_parallel_apply.pipeline.errors import START_ANEW, TargetError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import errors
from airflow_parallel_apply.pipeline.target.delta.columns import table_schema
from airflow_parallel_apply.pipeline.target.delta.known import KnownTable
from airflow_parallel_apply.pipeline.target.expectation import Expectation
from tests.support.lake import LakeRig
from tests.support.log_rows import Row, relation
from tests.support.variants import gated, variants

MAINTENANCE = ("optimize", "z-order", "vacuum", "checkpoint", "overwrites its schema", "adds")
A = relation(1, "a", "id v", key="id")
B = relation(2, "b", "id v", key="id")


def insert(seqno: int, key: str) -> Row:
    return Row(seqno=seqno, operation="I", values=(key, "v"))


@pytest.fixture
def rig(tmp_path: Path) -> LakeRig:
    """Two units, one of each of two channels."""
    found = LakeRig(f"delta://{tmp_path}/lake", [A], channels=2).begin()
    found.apply(-1, 1, [insert(1, "1")])
    found.apply(-1, 1, [insert(1, "2")], channel=1)
    return found


def refused(rig: LakeRig, says: str) -> TargetError:
    """By a unit, before it is decided, and by a look at the tables."""
    with pytest.raises(TargetError, match=says) as error:
        rig.apply(1, 2, [insert(2, "3")])
    assert rig.seqnos() == [1, 1]
    found = errors(rig.open().findings(Expectation(channels=2, tables=(A,))))
    assert [one.what for one in found] == [error.value.message]
    assert found[0].note == error.value.hint
    return error.value


def test_a_table_that_was_restored_to_a_former_version_is_refused_until_it_is_put_back(rig: LakeRig) -> None:
    rig.table(A).restore(1)
    error = refused(rig, "was restored to version 1 by somebody else, without the rows of version 2")
    assert error.hint is not None
    assert "Restore it to version 2" in error.hint
    rig.table(A).restore(2)
    rig.apply(1, 2, [insert(2, "3")])
    assert [row[0] for row in rig.rows(A)] == ["1", "2", "3"]


def test_a_restore_that_leaves_our_rows_is_none_of_our_business(rig: LakeRig) -> None:
    write_deltalake(rig.table(A), pa.table({"id": ["9"], "v": ["theirs"]}), mode="append")
    rig.table(A).optimize.compact()
    rig.table(A).restore(2)
    rig.apply(1, 2, [insert(2, "3")])
    assert [row[0] for row in rig.rows(A)] == ["1", "2", "3"]


def test_a_table_that_was_made_anew_is_refused(rig: LakeRig) -> None:
    uri = rig.lake.table_uri("public", "a")
    shutil.rmtree(uri)
    refused(rig, "is not in the lake any more")
    DeltaTable.create(uri, schema=table_schema(A))
    for number in range(5):
        write_deltalake(uri, pa.table({"id": [str(number)], "v": ["v"]}), mode="append")
    refused(rig, "was made anew by somebody else")


@gated
@pytest.mark.parametrize("since", [0, 1])
def test_a_table_that_was_put_back_from_an_older_copy_is_refused(rig: LakeRig, tmp_path: Path, since: int) -> None:
    """`since`: commits of others, after which it has as many versions as before."""
    uri = rig.lake.table_uri("public", "a")
    shutil.copytree(uri, tmp_path / "copy")
    rig.apply(1, 2, [insert(2, "3")])
    shutil.rmtree(uri)
    shutil.copytree(tmp_path / "copy", uri)
    for _ in range(since):
        rig.table(A).optimize.compact()
    says = "was put back from an older copy .* without the rows of version 3" if since else "was set back to version 2"
    with pytest.raises(TargetError, match=says):
        rig.apply(1, 3, [insert(3, "4")], channel=1)


def decided(tmp_path: Path) -> LakeRig:
    """A unit of two tables, which one of them has and the other one has refused."""
    rig = LakeRig(f"delta://{tmp_path}/lake", [A, B]).begin()

    def both(seqno: int) -> list[Row]:
        return [replace(insert(seqno, str(seqno)), relation_id=one.relation_id) for one in (A, B)]

    for seqno in (0, 1, 2):
        rig.apply(seqno - 1, seqno, both(seqno))
    rig.table(B).alter.add_constraint({"refuses": "id <> '3'"})
    with pytest.raises(TargetError, match="is decided"):
        rig.apply(2, 3, both(3))
    rig.table(B).alter.drop_constraint("refuses")
    return rig


@gated
@pytest.mark.parametrize("restored", [A, B], ids=["has it", "lacks it"])
def test_a_table_that_is_restored_while_a_unit_is_decided_is_refused_until_it_is_put_back(
    tmp_path: Path, restored: Relation
) -> None:
    rig = decided(tmp_path)
    last = 4 if restored is A else 3
    rig.table(restored).restore(last - 1)
    with pytest.raises(TargetError, match=f"was restored to version {last - 1} .*Restore it to version {last}, or "):
        rig.open().own(2)
    rig.table(restored).restore(last)
    rig.open().own(2)
    assert [[row[0] for row in rig.rows(one)] for one in (A, B)] == [["0", "1", "2", "3"]] * 2


@gated
def test_a_restore_undoes_no_commit_of_a_unit_that_another_lane_finished(tmp_path: Path) -> None:
    rig = decided(tmp_path)
    rig.open().own(2)
    rig.table(A).restore(3)
    found = errors(rig.open().findings(Expectation(channels=1, tables=(A, B))))
    assert [one.note for one in found] == [f"Restore it to version 4, or start anew. {START_ANEW}"]


@pytest.mark.parametrize("does", variants(MAINTENANCE, seldom=set(MAINTENANCE) - {"vacuum", "overwrites its schema"}))
def test_what_an_owner_of_a_lake_may_do_with_a_table_stops_nobody(rig: LakeRig, does: str) -> None:
    table = rig.table(A)
    match does:
        case "optimize":
            table.optimize.compact()
        case "z-order":
            table.optimize.z_order(["id"])
        case "vacuum":
            table.optimize.compact()
            table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        case "checkpoint":
            table.create_checkpoint()
            table.cleanup_metadata()
        case "overwrites its schema":
            rows = table.to_pyarrow_table()
            write_deltalake(table, rows.append_column("w", pa.nulls(2, pa.string())), mode="overwrite",
                            schema_mode="overwrite")  # fmt: skip
        case "adds":
            table.alter.add_columns(type(table.schema().fields[0])("w", "string"))
    rig.apply(1, 2, [insert(2, "3")])
    rig.apply(1, 2, [insert(2, "4")], channel=1)
    assert [row[0] for row in rig.rows(A)] == ["1", "2", "3", "4"]


@gated
def test_a_table_that_took_the_name_of_another_one_gets_none_of_its_rows(tmp_path: Path) -> None:
    former, archived, new = (
        replace(relation(number, name, "id v", key="id"), oid=oid)
        for number, name, oid in ((1, "a", 7), (2, "a_old", 7), (3, "a", 8))
    )
    rig = LakeRig(f"delta://{tmp_path}/lake", [former]).begin()
    rig.apply(-1, 1, [insert(1, "1")])
    rig = replace(rig, relations=[former, archived, new])
    rows = [replace(insert(2, "2"), relation_id=3)]
    with pytest.raises(TargetError, match=r"the table that the source calls public.a_old now") as error:
        rig.apply(1, 2, rows)
    assert f"Move the directory {tmp_path}/lake/public/a to {tmp_path}/lake/public/a_old" in str(error.value)
    (tmp_path / "lake/public/a").rename(tmp_path / "lake/public/a_old")
    rig.apply(1, 2, rows)
    rig.apply(2, 3, [replace(insert(3, "3"), relation_id=2)])
    assert [[row[0] for row in rig.rows(one)] for one in (archived, new)] == [["1", "3"], ["2"]]


def test_tables_of_a_former_release_are_known_from_the_next_unit_on(rig: LakeRig) -> None:
    uri = rig.lake.table_uri("public", "a")
    assert KnownTable.from_text(uri) == KnownTable(uri=uri)
    found = KnownTable(uri=uri, table_id="x", version=4)
    assert KnownTable.from_text(found.to_text()) == found
    rig.open()._positions.update(lambda state: replace(state, tables=(KnownTable(uri=uri),)))
    rig.apply(1, 2, [insert(2, "3")])
    rig.table(A).restore(1)
    with pytest.raises(TargetError, match="was restored to version 1"):
        rig.apply(2, 3, [insert(3, "4")])
