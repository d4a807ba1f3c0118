"""Spark's plan of a unit: filters in Parquet, no exchange, and as little read as a channel needs."""

from __future__ import annotations

import json
import time
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql.types import LongType, StructType

from airflow_parallel_apply.pipeline.log import open_reader
from airflow_parallel_apply.pipeline.model.epoch import Branch, Serial, Unit
from airflow_parallel_apply.pipeline.partition.by_key import ByKey
from airflow_parallel_apply.pipeline.partition.channel import bucket_range, channel_of
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.store.log import LogStore
from airflow_parallel_apply.pipeline.store.protocol import FileBranch
from airflow_parallel_apply.spark.access import core_count
from airflow_parallel_apply.spark.job import ApplyJob, build_job, counted_rows, parts_of, read_rows
from airflow_parallel_apply.spark.schemas import LOADED_SCHEMA
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import close_session, open_session
from tests.support.tpcb_log import make_tpcb_log
from tests.support.variants import gated

TRANSACTIONS = 120_000


def _count_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = sum(batch.num_rows for batch in batches)
    yield pa.record_batch([pa.array([rows])], names=["rows"])


def _where_pyspark_is(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyspark

    for batch in batches:
        yield pa.record_batch([pa.array([pyspark.__file__] * batch.num_rows)], names=["path"])


# Shipped by value, since the server cannot import the tests.
_count_rows.__module__ = "__main__"
_where_pyspark_is.__module__ = "__main__"


@pytest.fixture(scope="module")
def log_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = str(tmp_path_factory.mktemp("tpcb") / "log")
    make_tpcb_log(url, TRANSACTIONS, incompressible=True)
    return url


@pytest.fixture(scope="module")
def files(log_url: str) -> tuple[str, ...]:
    return open_reader(log_url).row_files(-1, TRANSACTIONS)


@pytest.fixture(scope="module")
def session(spark_server: ServerLease, spark_session_id: str) -> Iterator[Any]:
    session = open_session(spark_server.url, spark_session_id)
    yield session
    close_session(session)


def unit(channel: int | None, channels: int, *, after: int = -1, last: int = TRANSACTIONS - 1, rows: int = 1) -> Unit:
    return Unit(
        pipeline="p",
        generation=1,
        kind=Serial() if channel is None else Branch(channel),
        channels=channels,
        token="t",
        after_seqno=after,
        last_seqno=last,
        row_count=rows,
    )


def job_of(session: Any, unit: Unit, files: tuple[str, ...]) -> ApplyJob:
    condition = None if unit.channel is None else ByKey(Routing(channels=unit.channels)).condition(unit.channel, ())
    branch = FileBranch(files=files, after_seqno=unit.after_seqno, last_seqno=unit.last_seqno, condition=condition)
    return build_job(session, unit, branch)


def plan_of(frame: Any) -> str:
    return frame._explain_string(extended=False)


def run(session: Any, found: Any) -> tuple[int, int | None]:
    """Rows that reached Python, and the unit's rows by Spark's count."""
    done = found.ordered.mapInArrow(_count_rows, StructType().add("rows", LongType()))
    rows = sum(done.toArrow().column("rows").to_pylist())
    return rows, counted_rows(done)


def told(server: ServerLease, path: str = "") -> Any:
    """Read what its REST API says of its applications."""
    with urllib.request.urlopen(f"{server.ui_url}/api/v1/applications{path}") as answer:  # noqa: S310  # loopback
        return json.load(answer)


def input_metrics(server: ServerLease, session: Any, found: Any) -> tuple[int, int]:
    """Bytes and records that Spark's scan of the job read, from its REST API."""
    tag = f"measured-{uuid.uuid4().hex}"
    session.addTag(tag)
    run(session, found)
    session.removeTag(tag)
    application = told(server)[0]["id"]
    deadline = time.monotonic() + 120
    while True:
        jobs = [
            job for job in told(server, f"/{application}/jobs") if any(tag in name for name in job.get("jobTags", ()))
        ]
        if jobs and all(job["status"] == "SUCCEEDED" for job in jobs):
            break
        assert time.monotonic() < deadline, "Spark's pages never told of the job"
        time.sleep(0.05)
    stages = [told(server, f"/{application}/stages/{stage}")[0] for job in jobs for stage in job["stageIds"]]
    return sum(stage["inputBytes"] for stage in stages), sum(stage["inputRecords"] for stage in stages)


def test_the_plan_pushes_the_filters_down_and_exchanges_nothing(session, files):
    pushed = session.conf.get("spark.sql.maxMetadataStringLength")
    session.conf.set("spark.sql.maxMetadataStringLength", "10000")
    plan = plan_of(job_of(session, unit(1, 4, after=1000, last=100_000), files).ordered)
    session.conf.set("spark.sql.maxMetadataStringLength", pushed)
    filters = plan.partition("PushedFilters: [")[2].partition("]")[0]
    assert "GreaterThan(seqno,1000)" in filters
    assert "LessThanOrEqual(seqno,100000)" in filters
    assert "GreaterThanOrEqual(bucket,256)" in filters
    assert "LessThanOrEqual(bucket,511)" in filters
    assert "Exchange" not in plan
    read = plan.partition("ReadSchema: struct<")[2].partition("\n")[0]
    assert "old_key" not in read


def test_a_large_unit_is_exchanged_by_range(session, files):
    job = job_of(session, unit(1, 4, rows=5_000_000), files)
    assert job.exchanged
    assert "rangepartitioning(relation_id" in plan_of(job.ordered)


@gated
def test_a_unit_of_all_channels_is_read_in_even_parts_and_nothing_is_exchanged(session, files, log_url):
    whole = unit(None, 4, rows=4 * TRANSACTIONS)
    assert parts_of(whole, lambda: 8) == 4
    job = build_job(session, whole, LogStore(open_reader(log_url)).branch(whole, parts=4))
    assert "Exchange" not in plan_of(job.ordered)
    done = job.ordered.mapInArrow(_count_rows, StructType().add("rows", LongType()))
    rows = done.toArrow().column("rows").to_pylist()
    assert len(rows) == 4
    assert max(rows) < 1.2 * min(rows), "some rows of this history are hot, and a bucket is never divided"
    assert counted_rows(done, job.scans) == 4 * TRANSACTIONS


@gated
def test_a_unit_has_no_more_parts_than_spark_has_cores(session, spark_server):
    application = told(spark_server)[0]["id"]
    cores = sum(one["totalCores"] for one in told(spark_server, f"/{application}/executors"))
    assert core_count(session) == cores
    assert parts_of(unit(None, 64, rows=100_000_000), lambda: core_count(session), exchange_rows=10**9) == cores


@gated
def test_the_units_rows_are_counted_before_the_links_drop_some(session, files):
    loaded, counted = run(session, job_of(session, unit(0, 2), files))
    bucket = pa.chunked_array([chunk for file in files for chunk in pq.read_table(file)["bucket"].chunks]).to_numpy()
    assert counted == int((channel_of(bucket, 2) == 0).sum())
    assert 0.4 * counted < loaded < 0.7 * counted


def test_a_log_whose_path_looks_like_a_pattern_is_read(session, files, tmp_path):
    directory = tmp_path / r"log [1] {a,b} *? \ %20"
    directory.mkdir()
    (directory / "rows.parquet").symlink_to(files[-1])
    found = read_rows(session, [str(directory / "rows.parquet")])
    assert found.count() == pq.read_metadata(files[-1]).num_rows


@gated
def test_spark_reads_no_other_records_than_the_units_where_it_spans_whole_row_groups(session, files, spark_server):
    for channel in (0, 1):
        found = job_of(session, unit(channel, 2), files)
        _, counted = run(session, found)
        _, records = input_metrics(spark_server, session, found)
        assert records == counted


@gated
def test_eight_channels_together_read_about_as_much_as_one_scan(session, files, log_url, spark_server):
    assert max(segment.file_bytes for segment in open_reader(log_url).state().segments) >= 16 * 2**20
    whole, _ = input_metrics(spark_server, session, job_of(session, unit(0, 1), files))
    parts = [input_metrics(spark_server, session, job_of(session, unit(c, 8), files))[0] for c in range(8)]
    assert sum(parts) < 1.3 * whole


@gated
def test_each_tables_rows_come_by_key_and_each_keys_changes_in_order(session, files):
    table = job_of(session, unit(0, 2, last=4999), files).ordered.toArrow()
    assert table.column_names == LOADED_SCHEMA.names
    found: dict[int, list[tuple[int, int]]] = {}
    for relation, key, seqno in zip(
        *(table.column(name).to_pylist() for name in ("relation_id", "key", "seqno")), strict=True
    ):
        found.setdefault(relation, []).append((0 if key is None else int(key), seqno))
    assert len(found) == 4
    assert all(order == sorted(order) for order in found.values())


def test_a_job_asks_the_server_nothing_but_to_run_it(session, files, monkeypatch):
    def analyze(method: str, **_: Any) -> None:
        raise AssertionError(f"the client asked for {method}")

    monkeypatch.setattr(session.client, "_analyze", analyze)
    assert run(session, job_of(session, unit(0, 2, last=9), files))[0] > 0


@gated
def test_spark_sql_finds_the_bucket_that_capture_wrote(session, files):
    from pyspark.sql.connect.functions import col, expr

    rows = session.read.parquet(files[0]).where(col("seqno") < 1000)
    tables = "element_at(array('accounts', 'tellers', 'branches', 'history'), relation_id)"
    keyed = f"xxhash64(concat('public.pgbench_', {tables}, decode(X'00', 'UTF-8'), key))"
    bucket = expr(f"pmod(if(key is null, xxhash64(seqno, fragno), {keyed}), 1024)")
    found = rows.select(col("bucket"), bucket.alias("computed")).toArrow()
    assert found.num_rows == 4000
    assert found.column("bucket").to_pylist() == found.column("computed").to_pylist()
    channel = expr(f"{bucket_range(1, 4)[0]} <= bucket and bucket <= {bucket_range(1, 4)[1]}")
    in_spark = rows.select((channel).alias("mine"), col("bucket")).toArrow()
    assert in_spark.column("mine").to_pylist() == [
        found == 1 for found in channel_of(in_spark.column("bucket").to_numpy(), 4).tolist()
    ]


def test_workers_import_the_installed_pyspark_which_is_compiled_already(session):
    found = session.range(0, 2, 1, 2).mapInArrow(_where_pyspark_is, "path string").toArrow()
    assert found.column("path").to_pylist() == [pyspark.__file__] * 2


@gated
def test_relations_that_an_older_rule_ordered_are_sorted_by_their_keys(session: Any, files: tuple[str, ...]) -> None:
    branch = FileBranch(files=files, after_seqno=-1, last_seqno=99, condition=None, unordered=(0, 1, 2, 3))
    for exchange_rows in (1000, 100):
        job = build_job(session, unit(None, 1, last=99, rows=400), branch, exchange_rows=exchange_rows)
        keys = [
            (row["relation_id"], row["key"], row["seqno"]) for row in job.ordered.toArrow().to_pylist() if row["key"]
        ]
        assert len(keys) >= 300
        if exchange_rows == 1000:
            assert keys == sorted(keys)
