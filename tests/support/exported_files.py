"""A log of five transactions, its export to a folder, and what the folder's manifests name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
from airflow_parallel_apply.pipeline.export import ExportOptions, ExportReport, export_changes
from airflow_parallel_apply.pipeline.log.open import open_reader
from tests.support.written_log import Change

TRANSACTIONS = [
    [Change("I", 1, "a"), Change("I", 2, "b")],
    [Change("U", 1, "a2"), Change("I", 3, None)],
    [Change("D", 2)],
    [Change("T")],
    [Change("I", 4, "d")],
]
CHANGES = [
    (0, 0, "insert", 1, "a"), (0, 1, "insert", 2, "b"), (1, 0, "update", 1, "a2"), (1, 1, "insert", 3, None),
    (2, 0, "delete", 2, None), (3, 0, "truncate", None, None), (4, 0, "insert", 4, "d"),
]  # fmt: skip


def export(log_url: str, place: str, **more: Any) -> ExportReport:
    call = {name: more.pop(name) for name in ("report", "cancelled") if name in more}
    return export_changes(open_reader(log_url), place, ExportOptions(**more), **call)


def changes(place: str) -> list[tuple[Any, ...]]:
    """The changes that the manifests name, by seqno and fragno."""
    dataset = Dataset(FilePlace(place))
    found = []
    for manifest in dataset.manifests():
        for file in manifest.files:
            rows = pq.read_table(Path(place) / file.path).to_pylist()
            assert len(rows) == file.rows
            assert (Path(place) / file.path).stat().st_size == file.bytes_
            places = [(row["_seqno"], row["_fragno"]) for row in rows]
            assert places == sorted(places), "a file's rows are in order"
            assert (places[0][0], places[-1][0]) == (file.first_seqno, file.last_seqno)
            found += [(row["_seqno"], row["_fragno"], row["_operation"], row["id"], row["v"]) for row in rows]
    return sorted(found, key=lambda row: row[:2])


def data_files(place: str) -> list[Path]:
    return sorted(path for path in Path(place).rglob("*") if path.is_file() and path.parent.name != "_manifests")
