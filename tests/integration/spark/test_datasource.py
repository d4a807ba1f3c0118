"""A Spark user queries a log by name."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from airflow_parallel_apply.pipeline.log import open_reader
from airflow_parallel_apply.spark.datasource import NAME, register
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import close_session, open_session
from tests.support.tpcb_log import make_tpcb_log
from tests.support.variants import gated

TRANSACTIONS = 300


@pytest.fixture(scope="module")
def log_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = str(tmp_path_factory.mktemp("queried") / "log")
    make_tpcb_log(url, TRANSACTIONS)
    return url


@pytest.fixture(scope="module")
def session(spark_server: ServerLease) -> Iterator[Any]:
    session = open_session(spark_server.url, str(uuid.uuid4()))
    register(session)
    yield session
    close_session(session)


def test_a_log_is_queried_by_table_within_a_range_of_seqnos(session, log_url):
    rows = session.read.format(NAME).option("path", log_url).option("from_seqno", 100).option("to_seqno", 149).load()
    counted = {row["table"]: row["count"] for row in rows.groupBy("table").count().collect()}
    assert counted == {f"public.pgbench_{name}": 50 for name in ("accounts", "tellers", "branches", "history")}


@gated
def test_filters_on_seqno_and_bucket_are_pushed_down_and_others_still_hold(session, log_url):
    rows = session.read.format(NAME).option("path", log_url).load()
    asked = rows.where("seqno >= 10 and seqno < 60 and bucket <= 511 and operation = 'I'")
    plan = asked._explain_string(extended=False)
    assert "operation" in plan.partition("Filter")[2].partition("\n")[0]
    assert "seqno" not in plan.partition("Filter")[2].partition("\n")[0].replace("isnotnull(seqno", "")
    expected = sum(
        10 <= seqno < 60 and bucket <= 511 and operation == "I"
        for batch in open_reader(log_url).rows(-1, TRANSACTIONS, columns=["seqno", "bucket", "operation"])
        for seqno, bucket, operation in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    assert asked.count() == expected


def test_a_log_that_is_not_there_is_told(session, tmp_path: Path):
    with pytest.raises(PySparkException, match=r"log\.json is missing"):
        session.read.format(NAME).option("path", str(tmp_path / "none")).load().count()
