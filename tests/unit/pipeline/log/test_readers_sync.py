"""A reader that is registered stays so over a power loss, whoever made its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.log import directory, readers
from airflow_parallel_apply.pipeline.log.readers import LogReaderEntry, register_reader


def test_every_name_above_an_entry_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    for module in (directory, readers):
        monkeypatch.setattr(module, "sync_directory", synced.append)
    entry = LogReaderEntry(pipeline="p", server="1", database="d", place="here")
    for is_new in (True, False):
        synced.clear()
        assert register_reader(str(tmp_path), entry) is is_new
        assert {tmp_path, tmp_path / "readers"} <= set(synced)
