"""Two pipelines in a loop are refused before the second one begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from tests.support.rig import Rig


def test_a_pipeline_that_brings_tables_back_is_refused(source_dsn: str, target_dsn: str, tmp_path: Path) -> None:
    there = Rig(
        config=PipelineConfig(
            pipeline="there",
            log_url=str(tmp_path / "there"),
            tables=TablePatterns(include=("public.*",)),
            start=Start.EMPTY,
            channels=1,
        ),
        source_dsn=source_dsn,
        target_dsn=target_dsn,
    )
    there.both("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    there.prepare()
    config = replace(there.config, pipeline="back", log_url=str(tmp_path / "back"))
    back = Rig(config=config, source_dsn=target_dsn, target_dsn=source_dsn)
    with pytest.raises(ConfigurationError, match=r"pipeline there brings public\.t, public\.u from the target back"):
        back.prepare()
    assert any("pipeline there brings" in one.what for one in check_pipeline(config, back.source, back.target).findings)
    other = back.having(tables=TablePatterns(include=("other.*",)))
    back.both("CREATE SCHEMA other", "CREATE TABLE other.v (id int PRIMARY KEY)")
    other.prepare()
    assert not [
        one for one in check_pipeline(there.config, there.source, there.target).findings if "brings" in one.what
    ]
