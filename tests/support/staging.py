"""A log whose units are staged into a real PostgreSQL, and what then lies there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import psycopg
import pytest

from airflow_parallel_apply.pipeline.log import open_reader
from airflow_parallel_apply.pipeline.model.epoch import Branch, Serial, StagedUnit, Unit
from airflow_parallel_apply.pipeline.partition.channel import bucket_range
from airflow_parallel_apply.pipeline.target.postgres import PostgresTarget
from airflow_parallel_apply.pipeline.target.postgres.session import Session
from tests.support.written_log import TABLE, Change, append, make_log

TRANSACTIONS: Final = 400
KEYS: Final = 50
STAGING_SESSIONS: Final = (
    "FROM pg_stat_activity WHERE application_name LIKE 'pa:%:0:%' AND datname = current_database()"
)


@pytest.fixture(name="log_url")
def log_to_stage(tmp_path: Path) -> str:
    """Imported by the modules whose tests stage units."""
    url = str(tmp_path / "log")
    write_log(url)
    return url


@pytest.fixture(name="target")
def target_of_staging(target_dsn: str) -> Iterator[PostgresTarget]:
    """Imported likewise; its database has the log's table."""
    found = make_target(target_dsn)
    yield found
    found.close()


def write_log(url: str) -> None:
    """Inserts, then updates of the same keys over and over, the last ones deleted."""
    make_log(url)
    changes = [[Change("I", key, "first")] for key in range(KEYS)]
    changes += [[Change("U", number % KEYS, f"v{number}")] for number in range(TRANSACTIONS - KEYS - 5)]
    changes += [[Change("D", key)] for key in range(5)]
    append(url, 0, changes)


def make_target(dsn: str) -> PostgresTarget:
    """With the log's table."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TABLE)
    found = PostgresTarget(Session(dsn, pipeline="demo"), relations=None)
    found.migrate()
    return found


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
        kind=Serial() if channel is None else Branch(channel),
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


def unit_of(rows: int) -> Unit:
    return Unit(
        pipeline="demo",
        generation=1,
        kind=Branch(0),
        channels=1,
        token="token",
        after_seqno=-1,
        last_seqno=rows - 1,
        row_count=rows,
    )


def in_background(call: Callable[[], StagedUnit]) -> Callable[[], StagedUnit]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return lambda: future.result(timeout=180)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline, "waited three minutes for nothing"
        time.sleep(0.02)


def waiting_sessions(connection: psycopg.Connection) -> int:
    return int(connection.execute(f"SELECT count(*) {STAGING_SESSIONS} AND wait_event_type = 'Lock'").fetchone()[0])


def ended_sessions(connection: psycopg.Connection) -> int:
    ended = f"SELECT count(pg_terminate_backend(pid)) {STAGING_SESSIONS} AND wait_event_type = 'Lock'"
    return int(connection.execute(ended).fetchone()[0])
