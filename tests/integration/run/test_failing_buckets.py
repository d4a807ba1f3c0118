"""Pipelines into a bucket that is busy, loses answers or cuts them off: runs that are repeated end green and equal."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import Consistency, PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from tests.support.failing_s3 import FailingS3, Faults
from tests.support.rig import Rig, execute

TABLES = (
    "CREATE TABLE t (id integer PRIMARY KEY, v text)",
    "CREATE TABLE bag (v text)",
    "ALTER TABLE bag REPLICA IDENTITY FULL",
    "INSERT INTO t SELECT i, 'old' FROM generate_series(1, 20) i",
)
WRITES = (
    "INSERT INTO t SELECT i, 'new' FROM generate_series({0}00, {0}09) i",
    "UPDATE t SET v = v || '!' WHERE id % 3 = 0",
    "INSERT INTO bag SELECT 'x' FROM generate_series(1, 4)",
    "UPDATE t SET id = id + 100000 WHERE id % 11 = 0 AND id < 100000",
    "DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag LIMIT 1)",
    "DELETE FROM t WHERE id % 7 = 0",
)
OFTEN = Faults(busy=0.02, lost=0.02, cut=0.02, is_plain=True, seed=3)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("consistency", Consistency)
@pytest.mark.parametrize("scheme", ["files", "delta"])
def test_runs_that_are_repeated_end_green_and_equal(
    scheme: str, consistency: Consistency, source_dsn: str, ledger_dsn: str, tmp_path: Path
) -> None:
    execute(source_dsn, *TABLES)
    config = PipelineConfig(
        pipeline="demo",
        log_url=str(tmp_path / "log"),
        start=Start.COPY,
        channels=2,
        lanes=2,
        consistency=consistency,
    )
    with FailingS3() as s3:
        rig = Rig(config=config, source_dsn=source_dsn, target_dsn=s3.url(scheme, "demo"), ledger_dsn=ledger_dsn)
        before, green = s3.fail(OFTEN), 0
        while green < 2:
            # No bound but the test's own: how often a request fails is chance.
            with suppress(ParallelApplyError):
                rig.prepare()
                rig.run(f"failing {green}")
                green += 1
                rig.write(*(one.format(green) for one in WRITES))
        assert s3.fail(Faults()) > before
        rig.run()
        assert rig.comparison().equal
