"""Pipelines between servers of different versions, and runs that another release of this package goes on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig, Start
from airflow_parallel_apply.pipeline.model.finding import Severity
from airflow_parallel_apply.pipeline.target.postgres import schema
from tests.support.clusters import CopiedServer
from tests.support.ddl_messages import ddl, install
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


@gated
def test_a_run_that_an_earlier_release_opened_goes_on(
    source_dsn: str, target_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables of version 18 are made as that release made them."""
    config = PipelineConfig(pipeline="p", log_url=str(tmp_path / "log"), start=Start.EMPTY, ddl=DdlPolicy.APPLY)
    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    install(source_dsn)
    rig.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    with monkeypatch.context() as before:
        before.setattr(schema, "VERSION", 18)
        rig.prepare()
        rig.write("INSERT INTO t VALUES (1, 1)")
        alter = "ALTER TABLE public.t ALTER n TYPE bigint"
        rig.transaction(alter, ddl(alter), "INSERT INTO t VALUES (2, 2)")
        rig.capture("a")
        opened = rig.open("a")
    reports = rig.apply(opened)
    rig.close(opened, reports)
    assert rig.comparison().equal
