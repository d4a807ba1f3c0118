"""A feed in a bucket: the next manifest is a conditional put, which the bucket itself refuses to make twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from airflow_parallel_apply.pipeline.config import PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
from airflow_parallel_apply.pipeline.target.files.address import FilesAddress
from tests.support.failing_s3 import FailingS3
from tests.support.rig import Rig, execute
from tests.support.variants import gated


@pytest.fixture
def bucket() -> Iterator[str]:
    """The address of a directory in a bucket, whose secret has a slash."""
    with FailingS3() as s3:
        yield s3.url("files", "demo").replace(":secret@", f":{quote('hush/hush', safe='')}@")


@gated
def test_a_pipeline_feeds_a_bucket(bucket: str, source_dsn: str, ledger_dsn: str, tmp_path: Path) -> None:
    long = "ö" * 31
    execute(source_dsn, "CREATE TABLE t (id integer PRIMARY KEY, v text)")
    execute(source_dsn, f'CREATE SCHEMA "{long}" CREATE TABLE "{long}" (id integer PRIMARY KEY)')
    config = PipelineConfig(
        pipeline="demo",
        log_url=str(tmp_path / "log"),
        start=Start.EMPTY,
        channels=2,
        tables=TablePatterns(include=("*.*",)),
    )
    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=bucket, ledger_dsn=ledger_dsn)
    rig.prepare()
    rig.write(
        "INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 50) i",
        "UPDATE t SET v = v || '!' WHERE id % 2 = 0",
        "DELETE FROM t WHERE id % 5 = 0",
        f'INSERT INTO "{long}"."{long}" VALUES (1)',
    )
    rig.run()
    compared = rig.comparison()
    assert compared.equal, compared
    assert sorted(table.source_rows for table in compared.tables) == [1, 40]
    newest = Dataset(FilesAddress.parse(bucket).place()).newest()
    assert newest is not None
    place = FilesAddress.parse(bucket).place()
    assert not Dataset(place).commit(replace(newest, writer="another")), "that version is there already"
    assert Dataset(place).commit(newest), "it is there as it was written"
