"""Reading a directory's feed, and what the rows of its tables are after all changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
from airflow_parallel_apply.pipeline.encode.files.manifest import DataFile
from airflow_parallel_apply.pipeline.encode.files.place import FilePlace


def files_of(lake: Path, table: str = "") -> list[DataFile]:
    """The files that manifests name."""
    return [
        file
        for manifest in Dataset(FilePlace(str(lake))).manifests()
        for file in manifest.files
        if table in ("", file.table)
    ]


def feed(lake: Path, table: str) -> list[dict[str, Any]]:
    """All changes of a table, in their order."""
    rows = [row for file in files_of(lake, table) for row in pq.read_table(lake / file.path).to_pylist()]
    return sorted(rows, key=lambda row: (row["_seqno"], row["_fragno"]))


def replayed(lake: Path, table: str, key: str = "id") -> dict[Any, dict[str, Any]]:
    """The rows of a table after all changes, by key. A change that is there twice, or not, contradicts the next."""
    found: dict[Any, dict[str, Any]] = {}
    changes = feed(lake, table)
    twice = [place for place, n in Counter((row["_seqno"], row["_fragno"]) for row in changes).items() if n > 1]
    assert not twice
    for row in changes:
        values = {name: value for name, value in row.items() if not name.startswith("_")}
        match row["_operation"]:
            case "insert" | "read":
                assert row[key] not in found
                found[row[key]] = values
            case "update":
                found[row[key]] = values
            case "delete":
                del found[row[key]]
            case "truncate":
                found = {}
    return found
