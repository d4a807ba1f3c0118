"""A target that loses the end of what it committed, while the queue elsewhere remembers all of it as finished.

The loss is a former state of rows, positions, plan and bounds, put back in one transaction, as a restored or promoted
server has it; every session ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import psycopg
import pytest

from airflow_parallel_apply.pipeline.apply.signals import Cancelled
from airflow_parallel_apply.pipeline.config import QueueEndpoint
from airflow_parallel_apply.pipeline.coordinate.feeding import FeedLimits
from airflow_parallel_apply.pipeline.coordinate.state import Phase, StopReason
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.plan.extend import extend_plan
from airflow_parallel_apply.queue.model import Insert
from tests.contract.test_coordinate import history, rows
from tests.support.generation import Generation
from tests.support.queue_service import ServedQueue
from tests.support.variants import GATED, gated
from tests.support.written_log import Change, append

SEEDS: Final = 20
TABLES: Final = ("public.t", "parallel_apply.position", "parallel_apply.epoch", "parallel_apply.run")

Make = Callable[..., Generation]


@pytest.fixture
def steered_by(tmp_path: Path) -> Iterator[QueueEndpoint]:
    served = ServedQueue(tmp_path / "queue")
    yield QueueEndpoint(conn_id="queue", dsn=served.url)
    served.stop()


def remember(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("DROP SCHEMA IF EXISTS kept CASCADE")
        connection.execute("CREATE SCHEMA kept")
        connection.execute(f"LOCK TABLE {', '.join(TABLES)} IN SHARE MODE")
        for table in TABLES:
            connection.execute(f"CREATE TABLE kept.{table.partition('.')[2]} AS TABLE {table}")


def lose(dsn: str) -> None:
    """Lose what was committed since `remember`."""
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        for table in TABLES:
            connection.execute(f"DELETE FROM {table}")
            connection.execute(f"INSERT INTO {table} SELECT * FROM kept.{table.partition('.')[2]}")


def worked(generation: Generation, checks: int, **options: Callable[[], bool]) -> None:
    """A lane that is cancelled after so many looks, or comes to its end before."""
    left = iter(range(checks))
    with suppress(Cancelled):
        generation.lane(0, cancelled=lambda: next(left, None) is None, **options)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.long if seed > 0 else GATED) for seed in range(SEEDS)]
)
def test_what_a_target_loses_is_applied_again(make: Make, target_dsn: str, log_url: str, seed: int) -> None:
    """With truncates, epochs without rows in most channels, stops, and losses of more than is fed at once."""
    chance = random.Random(seed)
    transactions, expected = history(150, seed, truncates=seed % 2 == 0)
    last = append(log_url, 0, transactions)
    generation = make(chance.choice([1, 4, 8]), FeedLimits(epochs=chance.choice([2, 32])))
    worked(generation, chance.randrange(1, 30))
    remember(target_dsn)
    worked(generation, chance.randrange(1, 60), stop_requested=lambda: seed % 5 == 4 and chance.random() < 0.05)
    if generation.coordinator.state().phase is Phase.DRAINED:
        remember(target_dsn)
    lose(target_dsn)
    generation.lanes(2)
    state = generation.coordinator.state()
    assert state.phase is Phase.DRAINED
    assert set(generation.seqnos()) == {state.stop_seqno}
    if state.stop_reason is StopReason.ASKED:
        generation = make(4)
        generation.lanes(2)
    assert set(generation.seqnos()) == {last}
    assert rows(target_dsn) == expected


def test_a_branch_without_rows_does_not_pass_over_what_was_lost(make: Make, target_dsn: str, log_url: str) -> None:
    """One key, so one channel has all the rows, and what the others do is move their positions."""
    append(log_url, 0, [[Change("I", 1, "0")], *([Change("U", 1, str(n))] for n in range(1, 100))])
    generation = make(4)
    worked(generation, 2)
    remember(target_dsn)
    worked(generation, 8)
    lose(target_dsn)
    generation.lanes(2)
    assert generation.seqnos() == [99] * 4
    assert rows(target_dsn) == {1: "99"}


@gated
def test_a_plan_that_is_lost_is_made_anew_and_nothing_rests_inside_it(
    make: Make, target_dsn: str, log_url: str
) -> None:
    """The plan no longer has what was fed: another plan's epochs end elsewhere."""
    transactions, expected = history(60, 5, truncates=False)
    append(log_url, 0, transactions)
    generation = make(4)
    with psycopg.connect(target_dsn) as connection:
        connection.execute("DELETE FROM parallel_apply.epoch WHERE number > 0")
    longer = replace(generation.config, epoch_max_changes=33)
    extend_plan(open_reader(log_url), generation.session, longer, generation=generation.names.generation)
    generation.lanes(2)
    assert generation.seqnos() == [59] * 4
    assert rows(target_dsn) == expected


@gated
def test_a_plan_whose_end_is_lost_before_it_was_fed_is_made_anew(make: Make, target_dsn: str, log_url: str) -> None:
    """Everything is captured, so that no capture would plan; and all that was fed fits the positions. Before that, the
    lane that has the capture's task does.
    """
    transactions, expected = history(60, 5, truncates=False)
    append(log_url, 0, transactions)
    generation = make(4, FeedLimits(epochs=2))
    fed = generation.coordinator.state().fed_epoch
    with psycopg.connect(target_dsn) as connection:
        connection.execute("DELETE FROM parallel_apply.epoch WHERE number > %s", [fed])
    coordinator = generation.coordinator
    insert = [Insert(queue=coordinator.names.capture, value={}, sequence=0)]
    (capture,) = coordinator.queue.modify(claimant="captures", insert=insert)
    assert not coordinator.recover()
    coordinator.queue.modify(claimant="captures", delete=[capture.ref])
    assert coordinator.recover()
    generation.lane()
    assert generation.seqnos() == [59] * 4
    assert rows(target_dsn) == expected


@gated
def test_a_plan_that_is_made_anew_ends_an_epoch_wherever_a_channel_is(
    make: Make, target_dsn: str, log_url: str
) -> None:
    """Tables that are copied anew have it forgotten down to the low watermark, channels that are ahead or not."""
    transactions, expected = history(60, 9, truncates=False)
    append(log_url, 0, transactions[:2])
    crashed = make(4)
    with suppress(Cancelled):
        crashed.lane(0, cancelled=lambda: len(set(crashed.seqnos())) > 1)
    assert len(set(crashed.seqnos())) > 1
    with psycopg.connect(target_dsn) as connection:
        connection.execute(
            "DELETE FROM parallel_apply.epoch WHERE last_seqno > (SELECT min(seqno) FROM parallel_apply.position)"
        )
    append(log_url, 2, transactions[2:])
    make(4).lanes(2)
    assert rows(target_dsn) == expected
