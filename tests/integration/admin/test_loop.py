"""Two pipelines in a loop, or into one target, are refused before the second one begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.admin.drop import drop_pipeline
from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from tests.support.rig import Rig, execute
from tests.support.variants import gated


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


@gated
@pytest.mark.parametrize("is_one_log", [True, False])
def test_a_second_pipeline_that_applies_the_same_tables_to_the_same_target_is_refused(
    source_dsn: str, target_dsn: str, tmp_path: Path, *, is_one_log: bool
) -> None:
    config = PipelineConfig(pipeline="first", slot="one", log_url=str(tmp_path / "log"), start=Start.EMPTY, channels=1)
    first = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    first.both("CREATE TABLE t (id int)", "CREATE SCHEMA other", "CREATE TABLE other.v (id int)")
    first.prepare()
    second = first.having(pipeline="second")
    if not is_one_log:
        second = second.having(slot="two", log_url=str(tmp_path / "log of its own"))
    with pytest.raises(ConfigurationError, match=r"pipeline first applies public\.t to this target, too"):
        second.prepare()
    found = check_pipeline(second.config, second.source, second.target).findings
    assert any("applies public.t to this target, too" in one.what for one in found)
    first.write("INSERT INTO t VALUES (1)", "INSERT INTO other.v VALUES (1)")
    first.run()
    apart = second.having(
        slot="two", log_url=str(tmp_path / "apart"), start=Start.COPY, tables=TablePatterns(include=("other.*",))
    )
    apart.run()
    drop_pipeline("first", first.source, first.target, slot="one", log_url=first.config.log_url, with_log=True)
    execute(target_dsn, "TRUNCATE t")
    second.having(slot="three", log_url=str(tmp_path / "after"), pipeline="third", start=Start.COPY).run()
    for rig in (first, apart):
        assert rig.comparison().equal
