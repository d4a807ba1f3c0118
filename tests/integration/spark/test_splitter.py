"""Spark's range partitioning keeps what every splitter promises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.spark.access import column_functions
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import close_session, open_session
from airflow_parallel_apply.spark.splitter import split_frame
from tests.contract.splitters import COUNTS, KEYS, Split, assert_of_about_equal_size, assert_ranges, tables
from tests.support.examples import examples
from tests.support.variants import gated


@pytest.fixture(scope="module")
def session(spark_server: ServerLease, spark_session_id: str) -> Iterator[Any]:
    made = open_session(spark_server.url, spark_session_id)
    yield made
    close_session(made)


@pytest.fixture(scope="module")
def split(session: Any) -> Split:
    def by_spark(rows: pa.Table, keys: Sequence[str], count: int) -> list[pa.Table]:
        frame = split_frame(session.createDataFrame(rows), keys, count)
        place = column_functions(frame).spark_partition_id()
        found = frame.withColumn("place", place).toArrow()
        places = sorted(set(found.column("place").to_pylist()))
        return [found.filter(pa.compute.equal(found.column("place"), one)).drop_columns("place") for one in places]

    return by_spark


@settings(
    deadline=None, max_examples=examples(24), suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
@given(rows=tables(), keys=KEYS, count=COUNTS)
def test_ranges_are_disjoint_complete_and_ascend(split: Split, rows: pa.Table, keys: Sequence[str], count: int) -> None:
    if rows.num_rows:
        assert_ranges(split, rows, keys, count)


@gated
def test_ranges_are_of_about_equal_size(split: Split) -> None:
    assert_of_about_equal_size(split)


def test_a_count_that_is_none_is_refused(split: Split) -> None:
    with pytest.raises(ConfigurationError, match="ranges"):
        split(pa.table({"k": [1]}), ["k"], 0)
