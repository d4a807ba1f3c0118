"""Spark SQL and Arrow put each row into the same channel, whatever the partitioner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from airflow_parallel_apply.pipeline.apply.stage import Stage
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.partition.open import open_partitioner
from airflow_parallel_apply.pipeline.run import OpenedRun
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import ConnectAccess, close_session, open_session
from airflow_parallel_apply.spark.stage import open_stage
from tests.support.examples import examples
from tests.support.partitioner_cases import RELATIONS, ROUTINGS, batches, place
from tests.support.partitioners import by_letter_installed
from tests.support.rig import Rig
from tests.support.variants import gated


@pytest.fixture(scope="module")
def rows() -> pa.RecordBatch:
    """Some hundred random rows, told apart by their fragno."""
    found: list[pa.RecordBatch] = []

    @settings(deadline=None, max_examples=examples(150), database=None, derandomize=True)
    @given(batch=batches())
    def collect(batch: pa.RecordBatch) -> None:
        found.append(batch)

    collect()
    table = pa.Table.from_batches(found).combine_chunks()
    numbers = pa.array(range(table.num_rows), pa.int64())
    (rows,) = table.set_column(ROWS.get_field_index("fragno"), ROWS.field("fragno"), numbers).to_batches()
    return rows


@pytest.fixture(scope="module")
def session(spark_server: ServerLease, spark_session_id: str) -> Iterator[Any]:
    made = open_session(spark_server.url, spark_session_id)
    yield made
    close_session(made)


@pytest.fixture(scope="module")
def frame(session: Any, rows: pa.RecordBatch) -> Any:
    return session.createDataFrame(pa.Table.from_batches([rows])).cache()


@pytest.mark.parametrize("name", ROUTINGS)
def test_spark_finds_in_each_channel_what_arrow_puts_there(
    name: str, frame: Any, rows: pa.RecordBatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from pyspark.sql.connect.functions import expr

    routing = ROUTINGS[name]
    with by_letter_installed(tmp_path_factory.mktemp("installed")):
        expected = place(routing, rows).channels.tolist()
        partitioner = open_partitioner(routing)
    relations = list(RELATIONS.values())
    conditions = [partitioner.condition(channel, relations) for channel in range(routing.channels)]
    held = [expr(condition).alias(f"c{channel}") for channel, condition in enumerate(conditions)]
    answers = frame.select("fragno", *held).toArrow().sort_by("fragno")
    for index, line in enumerate(answers.drop_columns("fragno").to_pylist()):
        wanted = expected[index]
        true = [channel for channel, answer in enumerate(line.values()) if answer]
        assert true == ([wanted] if wanted >= 0 else []), rows.slice(index, 1).to_pylist()
    assert max(expected) > 0 or routing.channels == 1


@gated
def test_shards_go_through_spark(
    source_dsn: str, target_dsn: str, spark_server: ServerLease, spark_session_id: str, tmp_path: Path
) -> None:
    shards = tmp_path / "shards.toml"
    shards.write_text('critical = ["7"]\n[channels]\n"1" = 0\n"2" = 1\n')
    config = PipelineConfig(
        pipeline="p",
        log_url=str(tmp_path / "log"),
        channels=3,
        lanes=2,
        partitioner="shard_list",
        shard_by=(("public.orders", "tenant % 10"), ("*", "split_part(note, '/', 1)")),
        shard_file=str(shards),
    )
    target = Endpoint(conn_id="target", url=target_dsn)

    def stage(opened: OpenedRun) -> Stage:
        return open_stage(
            access=ConnectAccess(url=spark_server.url, session_id=spark_session_id), config=config, target=target
        )

    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn, stage=stage)
    rig.both(
        "CREATE TABLE orders (tenant bigint, id int, total numeric, PRIMARY KEY (tenant, id))",
        "CREATE TABLE events (note text)",
    )
    rig.prepare()
    for number in range(60):
        tenant = number % 13
        rig.transaction(
            f"INSERT INTO orders SELECT {tenant}, {number} * 10 + n, n FROM generate_series(1, 5) n",
            f"UPDATE orders SET total = total + 1 WHERE tenant = {tenant}",
            f"DELETE FROM orders WHERE tenant = {tenant} AND id % 7 = 0",
            f"INSERT INTO events VALUES ('{tenant % 10}/note {number}')",
        )
    rig.run()
    assert rig.comparison().equal
