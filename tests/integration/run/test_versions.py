"""Pipelines between servers of different versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.model.finding import Severity
from tests.support.clusters import CopiedServer
from tests.support.findings import look
from tests.support.rig import Rig
from tests.support.variants import gated


@gated
@pytest.mark.parametrize(("source_version", "target_version"), [(16, 18), pytest.param(18, 16, marks=pytest.mark.long)])
def test_pipelines_run_between_versions(tmp_path: Path, source_version: int, target_version: int) -> None:
    with (
        CopiedServer(tmp_path / "source", version=source_version, settings={"fsync": "off"}) as source,
        CopiedServer(tmp_path / "target", version=target_version, settings={"fsync": "off"}) as target,
    ):
        rig = Rig(
            config=PipelineConfig(pipeline="p", create_tables=True, log_url=str(tmp_path / "log"), channels=3),
            source_dsn=source.dsn(),
            target_dsn=target.dsn(),
        )
        rig.write(
            "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text UNIQUE NULLS NOT DISTINCT,"
            " at timestamptz, n numeric, twice int GENERATED ALWAYS AS (id * 2) STORED, r nummultirange)",
            "CREATE TABLE parts (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
            "CREATE TABLE parts_rest PARTITION OF parts DEFAULT",
            "CREATE TABLE bag (v text, child int REFERENCES parts ON DELETE CASCADE)",
            "ALTER TABLE bag REPLICA IDENTITY FULL",
            "INSERT INTO t (v, at, n, r) SELECT i, now(), i / 7.0, '{[1.0,2)}' FROM generate_series(1, 300) i",
            "INSERT INTO parts SELECT i, 'copied' FROM generate_series(1, 100) i",
            "INSERT INTO bag SELECT 'x', 1 + i % 3 FROM generate_series(1, 20) i",
        )
        assert not [finding for finding in look(rig).findings if finding.severity is Severity.ERROR]
        rig.run()
        rig.write(
            "UPDATE t SET v = v || 'b' WHERE id % 3 = 0",
            "DELETE FROM t WHERE id % 5 = 0",
            "UPDATE t SET id = DEFAULT WHERE id < 50",
            "DELETE FROM parts WHERE id = 1",
            "UPDATE parts SET id = id + 1000, v = 'moved'  WHERE id > 50",
            "UPDATE bag SET v = 'y' WHERE ctid = (SELECT min(ctid) FROM bag)",
            "TRUNCATE parts CASCADE",
            "INSERT INTO parts VALUES (1, 'again')",
        )
        rig.run()
        assert rig.comparison().equal
        assert {table.name for table in rig.comparison().tables} == {"public.t", "public.parts", "public.bag"}
