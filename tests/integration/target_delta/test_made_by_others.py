"""Tables that others made, or gave properties: their keys are found, and what they refuse is told as what it is."""

from __future__ import annotations

import json
from base64 import b85encode
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from struct import pack
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.finding import errors
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.value_type import ValueType
from airflow_parallel_apply.pipeline.target.expectation import Expectation
from airflow_parallel_apply.pipeline.target.steps import Replay
from tests.support.lake import LakeRig
from tests.support.log_rows import Row, in_order, relation
from tests.support.variants import gated, variants

A = relation(1, "a", "id v", key="id")
BAG = replace(relation(2, "bag", "v"), replica_identity=ReplicaIdentity.FULL)

KEYS = {
    "decimal 38 0": ("9" * 38, "-" + "9" * 38, "1"),
    "decimal 20 0": ("9007199254740993", "9007199254740992", "-9007199254740993"),
    "decimal 17 6": ("12345678901.123456", "12345678901.123457", "0.000001"),
    "integer 64": ("9223372036854775807", "-9223372036854775808", "9007199254740993"),
    "text": ("a" * 64 + "b", "a" * 64 + "c", "\U0010ffff" * 80),
    "bytes": ("\\x" + "ff" * 70, "\\x", "\\x" + "ff" * 64 + "00"),
    "timestamp": ("2020-01-01 00:00:00.000999", "9999-12-31 23:59:59.999999", "0001-01-01 00:00:00"),
    "instant": ("1969-12-31 23:59:59.999999+00", "1500-01-01 00:00:00.000001+00", "2020-01-01 00:00:00.001001+00"),
    "date": ("0001-01-01", "9999-12-31", "1582-10-10"),
}


def row(seqno: int, operation: str, *values: str | None, **given: Any) -> Row:
    return Row(seqno=seqno, operation=operation, values=values, **given)


def keyed_by(value: str) -> Relation:
    key = Column(name="id", type_name="k", kind=KeyKind.EXACT, key=True, value=ValueType.parse(value))
    text = Column(name="v", type_name="text", value=ValueType.parse("text"))
    return Relation(
        relation_id=1, schema="public", table="t", replica_identity=ReplicaIdentity.KEY, columns=(key, text)
    )


@pytest.mark.parametrize("value", variants(KEYS, seldom=KEYS.keys() - {"decimal 20 0", "bytes"}))
def test_a_key_is_found_however_its_statistics_are_rounded(tmp_path: Path, value: str) -> None:
    keys, table = KEYS[value], keyed_by(value)
    rig = LakeRig(f"delta://{tmp_path}", [table]).begin()
    for seqno, key in enumerate(keys):
        rig.apply(seqno - 1, seqno, [row(seqno, "I", key, "old")])
    rig.apply(2, 3, [row(3, "U", key, "new") for key in keys[:2]])
    assert sorted(found[1] for found in rig.rows(table)) == ["new", "new", "old"]
    for key in keys:
        with pytest.raises(TargetError, match="is in the table already"):
            rig.apply(3, 4, [row(4, "I", key, "again")])
    # A value that was not sent is taken along to another key.
    target = rig.open()
    target.take(0, generation=1, token="t")
    moved = [row(4, "D", keys[1], None), row(5, "K", keys[1], None, old_key=[keys[0]], unsent=[1])]
    target.commit(rig.unit(3, 5), [Replay(rows=lambda: in_order(rig.known.relations, moved))])
    assert sorted(found[1] for found in rig.rows(table)) == ["new", "old"]
    rig.apply(5, 6, [row(6, "D", keys[1], None), row(6, "D", keys[2], None)])
    assert rig.rows(table) == []


@pytest.fixture
def rig(tmp_path: Path) -> LakeRig:
    found = LakeRig(f"delta://{tmp_path}", [A, BAG]).begin()
    rows = [row(1, "I", "1", "a"), row(1, "I", "2", "b"), row(1, "I", "x", relation_id=2)]
    found.apply(-1, 1, rows)
    return found


@gated
@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("constraint", "Invalid data found"),
        ("append-only", "append-only"),
        ("feature", "Unsupported table features"),
    ],
)
def test_what_a_table_refuses_is_no_race_and_no_outage(rig: LakeRig, does: str, says: str) -> None:
    table = rig.table(A)
    match does:
        case "constraint":
            table.alter.add_constraint({"short": "v <> 'long'"})
        case "append-only":
            table.alter.set_table_properties({"delta.appendOnly": "true"})
        case "feature":
            table.alter.add_feature(TableFeatures.RowTracking, allow_protocol_versions_increase=True)
    for rows in ([row(2, "U", "1", "long")], [row(2, "I", "3", "long"), row(2, "D", "1", None)]):
        with pytest.raises(TargetError, match=says) as refused:
            rig.apply(1, 2, rows, claim="t")
        assert refused.value.table == "public.a"
        assert refused.value.hint
        assert "long" not in str(refused.value), "a row's values are told where that is asked for"
        assert rig.seqnos() == [1]


@pytest.mark.parametrize(
    ("configuration", "metadata", "says"),
    [
        ({"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}, {}, "maps columns"),
        ({}, {"delta.generationExpression": "upper(id)"}, "computes its column v"),
    ],
)
def test_what_delta_rs_would_write_wrongly_is_refused_by_name(
    rig: LakeRig, configuration: dict[str, str], metadata: dict[str, str], says: str
) -> None:
    """delta-rs commits to a table whose columns are mapped, and readers find nulls there."""
    table = Path(rig.lake.table_uri("public", "a"))
    schema = rig.table(A).schema().to_json()
    fields = json.loads(schema)["fields"]
    for number, field in enumerate(fields):
        mapped = {"delta.columnMapping.id": number + 1, "delta.columnMapping.physicalName": field["name"]}
        field["metadata"] = mapped if configuration else metadata if field["name"] == "v" else {}
    meta = metadata_of(table)
    meta |= {"schemaString": json.dumps({"type": "struct", "fields": fields}), "configuration": configuration}
    commit(table, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, {"metaData": meta})
    with pytest.raises(TargetError, match=says) as refused:
        rig.apply(1, 2, [row(2, "U", "1", "new")])
    found = errors(rig.open().findings(Expectation(channels=1, tables=(A,))))
    assert [(one.what, one.note) for one in found] == [(refused.value.message, refused.value.hint)]
    assert rig.seqnos() == [1]


def test_a_feature_that_delta_rs_does_not_know_is_no_outage(rig: LakeRig) -> None:
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["new"], "writerFeatures": ["new"]}
    commit(Path(rig.lake.table_uri("public", "a")), {"protocol": protocol})
    with pytest.raises(TargetError, match="Feature 'new' is not supported") as refused:
        rig.apply(1, 2, [row(2, "U", "1", "new")])
    assert "Drop the feature" in (refused.value.hint or "")


@gated
@pytest.mark.parametrize("with_feature", [TableFeatures.DeletionVectors, TableFeatures.V2Checkpoint])
def test_a_table_with_a_feature_that_arrow_does_not_read_is_followed(rig: LakeRig, with_feature: TableFeatures) -> None:
    for table in (A, BAG):
        rig.table(table).alter.add_feature(with_feature, allow_protocol_versions_increase=True)
    target = rig.open()
    target.take(0, generation=1, token="t")
    moved = [row(2, "K", "9", None, old_key=["1"], unsent=[1])]
    target.commit(rig.unit(1, 2), [Replay(rows=lambda: in_order(rig.known.relations, moved))])
    rig.apply(2, 3, [row(3, "I", "1", "c"), row(3, "I", "x", relation_id=2), row(3, "D", "x", relation_id=2)])
    assert read(rig, A) == [("1", "c"), ("2", "b"), ("9", "a")]
    assert read(rig, BAG) == [("x",)]


@gated
def test_rows_that_a_deletion_vector_deletes_are_gone(rig: LakeRig) -> None:
    """As Spark deletes. A key may come again, and equal rows are counted without it."""
    for seqno in (2, 3):
        rig.apply(seqno - 1, seqno, [row(seqno, "I", "x", relation_id=2)])
    rig.apply(3, 4, [row(4, "I", str(number), "n") for number in range(10, 20)])
    rig.table(BAG).optimize.compact()
    delete_by_vector(Path(rig.lake.table_uri("public", "bag")), [1])
    delete_by_vector(Path(rig.lake.table_uri("public", "a")), [2])
    assert len(read(rig, BAG)) == 2
    (gone,) = {str(number) for number in range(10, 20)} - {found[0] for found in read(rig, A)}
    rig.apply(4, 5, [row(5, "I", gone, "again"), row(5, "D", "x", relation_id=2)])
    assert (gone, "again") in read(rig, A)
    assert read(rig, BAG) == [("x",)]
    with pytest.raises(TargetError, match="2 equal rows are to be deleted, and the table has 1"):
        rig.apply(5, 6, [row(6, "D", "x", relation_id=2)] * 2)


def test_a_table_without_statistics_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    rig = LakeRig(f"delta://{tmp_path}", [A])
    uri = rig.lake.table_uri("public", "a")
    write_deltalake(uri, pa.table({"id": ["1"], "v": ["a"]}))
    log = Path(uri, "_delta_log", f"{0:020d}.json")
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    log.write_text("\n".join(map(json.dumps, actions)))
    assert DeltaTable(uri).count() == 0
    found = errors(rig.open().findings(Expectation(channels=1, tables=(A,), are_empty=True)))
    assert [one.what for one in found] == ["public.a has rows in the lake, and is to have none"]


@pytest.mark.parametrize(("options", "refused"), [("", 0), ("?feed=true", 1)])
def test_changes_of_another_log_are_not_fed_behind_those_of_a_former_one(
    tmp_path: Path, options: str, refused: int
) -> None:
    rig = LakeRig(f"delta://{tmp_path}{options}", [A]).begin()
    rig.apply(-1, 1, [row(1, "I", "1", "a")])
    found = errors(rig.open().findings(Expectation(channels=1, tables=(A,), are_new=True)))
    assert [one.what for one in found] == ["public.a has rows in the lake, and is to have none"] * refused


def test_a_column_that_was_renamed_ahead_of_its_rows_is_to_get_its_name_back(rig: LakeRig) -> None:
    table = rig.table(A)
    renamed = table.to_pyarrow_table().rename_columns(["id", "w"])
    write_deltalake(table, renamed, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(TargetError, match=r"lacks column v .* give it this name back"):
        rig.apply(1, 2, [row(2, "U", "1", "new")])


def test_partitions_whose_values_do_not_all_come_back_are_refused(tmp_path: Path) -> None:
    rig = LakeRig(f"delta://{tmp_path}", [A])
    write_deltalake(rig.lake.table_uri("public", "a"), pa.table({"id": ["1"], "v": [""]}), partition_by=["v"])
    found = errors(rig.open().findings(Expectation(channels=1, tables=(A,))))
    assert [one.what for one in found] == ["public.a is partitioned by v (string), whose values do not all come back"]


def read(rig: LakeRig, table: Relation) -> list[tuple[Any, ...]]:
    """With the engine of delta-rs."""
    return sorted(
        tuple(found.values())
        for found in pa.RecordBatchReader.from_stream(rig.table(table).scan()).read_all().to_pylist()
    )


def metadata_of(table: Path) -> dict[str, Any]:
    """The newest one."""
    logs = sorted((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    found: dict[str, Any] = [one["metaData"] for one in actions if "metaData" in one][-1]
    return found


def commit(table: Path, *actions: dict[str, Any]) -> None:
    """As another engine makes a version."""
    version = DeltaTable(str(table)).version() + 1
    info = {"commitInfo": {"timestamp": 1, "operation": "SET TBLPROPERTIES", "operationParameters": {}}}
    log = table / "_delta_log" / f"{version:020d}.json"
    log.write_text("\n".join(map(json.dumps, (info, *actions))))


def delete_by_vector(table: Path, rows: Sequence[int]) -> None:
    """Commit that rows of the only, or first, file are deleted, by their numbers in it."""
    version = DeltaTable(str(table)).version()
    names = {Path(uri).name for uri in DeltaTable(str(table)).file_uris()}
    actions = [
        json.loads(line) for at in range(version + 1) for line in (table / "_delta_log" / f"{at:020d}.json").open()
    ]
    adds = [one["add"] for one in actions if one.get("add", {}).get("path") in names]
    add = max(adds, key=lambda one: json.loads(one["stats"])["numRecords"])
    meta = [one["metaData"] for one in actions if "metaData" in one][-1]
    meta["configuration"] = {**meta["configuration"], "delta.enableDeletionVectors": "true"}
    bitmap = pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + b"".join(pack("<H", number) for number in rows)
    content = pack("<IqI", 1681511377, 1, 0) + bitmap
    content += b"\0" * (-len(content) % 4)
    features = ["deletionVectors"]
    removed = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True, "size": add["size"]}
    vector = {
        "storageType": "i", "pathOrInlineDv": z85(content), "sizeInBytes": len(content), "cardinality": len(rows)
    }  # fmt: skip
    made = [
        {"commitInfo": {"timestamp": 1, "operation": "DELETE", "operationParameters": {}}},
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features,
                      "writerFeatures": features}},
        {"metaData": meta},
        {"remove": removed},
        {"add": {**add, "deletionVector": vector}},
    ]  # fmt: skip
    (table / "_delta_log" / f"{version + 1:020d}.json").write_text("\n".join(map(json.dumps, made)))


def z85(content: bytes) -> str:
    """ZeroMQ's alphabet in place of Python's."""
    python = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    zeromq = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    return b85encode(content).decode().translate(str.maketrans(python, zeromq))
