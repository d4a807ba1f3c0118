"""The apply stage through a real Spark, from a real log into a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.epoch import StagedUnit, Unit
from airflow_parallel_apply.pipeline.log import open_reader
from airflow_parallel_apply.pipeline.partition.channel import bucket_range
from airflow_parallel_apply.pipeline.target.postgres import PostgresTarget
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.stage import SparkStage
from tests.support.written_log import TABLE, Change, append, make_log

TRANSACTIONS = 400
KEYS = 50


@pytest.fixture
def log_url(tmp_path: Path) -> str:
    """Inserts, then updates of the same keys over and over, the last ones deleted."""
    url = str(tmp_path / "log")
    make_log(url)
    changes = [[Change("I", key, "first")] for key in range(KEYS)]
    changes += [[Change("U", number % KEYS, f"v{number}")] for number in range(TRANSACTIONS - KEYS - 5)]
    changes += [[Change("D", key)] for key in range(5)]
    append(url, 0, changes)
    return url


@pytest.fixture
def target(target_dsn: str) -> Iterator[PostgresTarget]:
    with psycopg.connect(target_dsn, autocommit=True) as connection:
        connection.execute(TABLE)
    found = PostgresTarget(Endpoint(conn_id="t", dsn=target_dsn), "demo", relations=None)
    found.migrate()
    yield found
    found.close()


@pytest.fixture
def make_stage(
    spark_server: ServerLease, spark_session_id: str, target_dsn: str, log_url: str, target: PostgresTarget
) -> Iterator[Callable[..., SparkStage]]:
    stages = []

    def make(**options: object) -> SparkStage:
        stage = SparkStage(
            url=spark_server.url,
            session_id=spark_session_id,
            config=PipelineConfig(pipeline="demo", log_url=log_url),
            target=Endpoint(conn_id="t", dsn=target_dsn),
            **options,
        )
        stages.append(stage)
        return stage

    yield make
    for stage in stages:
        stage.close()


def unit(log_url: str, *, channel: int | None = 0, channels: int = 2, after: int = -1, last: int | None = None) -> Unit:
    last = TRANSACTIONS - 1 if last is None else last
    buckets = [
        bucket
        for batch in open_reader(log_url).rows(after, last, columns=["bucket"])
        for bucket in batch.column("bucket").to_pylist()
    ]
    lowest, highest = (0, 1023) if channel is None else bucket_range(channel, channels)
    return Unit(
        pipeline="demo",
        generation=1,
        channel=channel,
        channels=channels,
        token="token",
        after_seqno=after,
        last_seqno=last,
        row_count=sum(lowest <= bucket <= highest for bucket in buckets),
    )


def staged_rows(dsn: str, staged: StagedUnit) -> dict[str, tuple[str, str | None]]:
    found: dict[str, tuple[str, str | None]] = {}
    with psycopg.connect(dsn) as connection:
        for table in staged.tables:
            for row in connection.execute(f'SELECT * FROM parallel_apply."{table.staging}"'):
                found[str(row[1])] = (str(row[0]), row[2])
    return found


def test_two_channels_together_stage_the_net_change_of_every_key(make_stage, log_url, target_dsn):
    stage = make_stage()
    both = [stage.stage(unit(log_url, channel=channel)) for channel in (0, 1)]
    first, second = (staged_rows(target_dsn, staged) for staged in both)
    assert not first.keys() & second.keys()
    net = first | second
    assert sum(staged.row_count for staged in both) == TRANSACTIONS
    # Inserted and deleted inside the unit: nothing is left of them.
    assert sorted(map(int, net)) == list(range(5, KEYS))
    last = TRANSACTIONS - KEYS - 5
    assert net["20"] == ("I", f"v{max(number for number in range(last) if number % KEYS == 20)}")
