"""Pipelines under protocol `two_phase`, and what they leave at the target."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol
from airflow_parallel_apply.pipeline.coordinate.feeding import FeedLimits
from tests.contract.test_groups import APART, staging
from tests.support.generation import Generation

Make = Callable[..., Generation]


def make_branches(make: Make, channels: int = 3, limits: FeedLimits = APART) -> Generation:
    return make(channels, limits, consistency=Consistency.EPOCH, protocol=EpochProtocol.TWO_PHASE)


def prepared(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid")
        return [name for (name,) in found]


def kept(dsn: str) -> int:
    """Return the number of records and marks."""
    with psycopg.connect(dsn) as connection:
        query = "SELECT (SELECT count(*) FROM parallel_apply.series) + (SELECT count(*) FROM parallel_apply.branch)"
        return int((connection.execute(query).fetchone() or (0,))[0])


def left_over(dsn: str) -> list[str]:
    """Return the names of prepared branches and of staging."""
    return [*prepared(dsn), *staging(dsn)]
