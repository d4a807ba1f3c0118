"""The directories of embedded servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.embedded import layout
from airflow_parallel_apply.pipeline.embedded.layout import host_directory


def test_a_release_has_servers_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade in place changes neither path nor Python, and workers that live on have the former release's code."""
    before = host_directory("spark", version="4.2.0", root=tmp_path)
    assert host_directory("spark", version="4.2.0", root=tmp_path) == before
    monkeypatch.setattr(layout, "_release", lambda: "99.0")
    after = host_directory("spark", version="4.2.0", root=tmp_path)
    assert after != before
    assert after.name.startswith("spark-4.2.0-")
