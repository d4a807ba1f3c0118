"""PipelineHook against a real database, with connections of both types that it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.hooks.pipeline import PipelineHook
from airflow_parallel_apply.pipeline.config import PipelineConfig, TablePatterns
from tests.support.rig import Rig


@pytest.mark.parametrize("scheme", ["postgres", "parallel-apply"])
def test_a_dag_author_reads_a_pipelines_status(
    monkeypatch: pytest.MonkeyPatch, source_dsn: str, target_dsn: str, source_database: str, tmp_path: Path, scheme: str
) -> None:
    rig = Rig(
        config=PipelineConfig(
            pipeline=source_database,
            log_url=str(tmp_path / "log"),
            channels=2,
            tables=TablePatterns(include=("public.*",)),
        ),
        source_dsn=source_dsn,
        target_dsn=target_dsn,
    )
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1)")
    rig.run()
    parts = dict(part.split("=") for part in target_dsn.split())
    monkeypatch.setenv(
        "AIRFLOW_CONN_WAREHOUSE", f"{scheme}://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}"
    )
    hook = PipelineHook("warehouse")
    assert hook.test_connection()[0]
    assert [channel.seqno for channel in hook.status(source_database).channels] == [0, 0]


def test_a_database_that_cannot_be_reached_fails_the_test_button(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", "postgres://nobody@127.0.0.1:1/none")
    works, why = PipelineHook("warehouse").test_connection()
    assert not works
    assert "127.0.0.1" in why
