"""The statements that a source is asked with."""

from __future__ import annotations

from pathlib import Path

from airflow_parallel_apply.pipeline.source import postgres


def test_statements_can_be_read_by_a_database_of_any_encoding() -> None:
    (directory,) = postgres.__path__
    found = [*Path(directory).rglob("*.sql")]
    assert found
    assert [path.name for path in found if not path.read_text(encoding="utf-8").isascii()] == []
