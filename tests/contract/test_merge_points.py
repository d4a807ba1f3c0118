"""Merge points: the state and the tasks that they go through, with others in between, and with lanes on a target."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from airflow_parallel_apply.pipeline.coordinate.feeding import FeedLimits
from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState, Phase, UnitFailure
from airflow_parallel_apply.pipeline.coordinate.tasks import PARKED, is_merge
from airflow_parallel_apply.pipeline.errors import Conflict, ConflictReason, OwnershipLost
from airflow_parallel_apply.pipeline.model.rework import ReworkKind
from airflow_parallel_apply.queue.model import Task
from tests.support.generation import Generation
from tests.support.variants import gated
from tests.support.written_log import Change, append

LEASE = timedelta(seconds=30)
CONFLICT = Conflict("taken", reason=ConflictReason.UNIQUE, table="public.t")

Make = Callable[..., Generation]


@pytest.fixture
def fed(make: Make, log_url: str) -> Generation:
    """Three channels with an epoch of 20 changes each behind the other; nothing is applied."""
    append(log_url, 0, [[Change("I", key, str(key))] for key in range(200)])
    return make(3, FeedLimits(epochs=5))


def claim(generation: Generation, channel: int, claimant: str = "test") -> Task:
    task = generation.queue.try_claim([generation.names.channel(channel)], claimant=claimant, lease=LEASE)
    assert task is not None
    return task


def claim_merge(generation: Generation) -> Task | None:
    return generation.queue.try_claim([generation.names.serial], claimant="test", lease=LEASE)


def heads(generation: Generation) -> list[Task]:
    return [generation.queue.tasks(generation.names.channel(channel), limit=1)[0] for channel in range(3)]


def parked(generation: Generation) -> list[bool]:
    return [head.at >= PARKED for head in heads(generation)]


def state(generation: Generation) -> CoordinatorState:
    return generation.coordinator.state()


def open_point(generation: Generation, channel: int = 0, *, after_seqno: int = -1) -> None:
    generation.coordinator.merge_points.open(claim(generation, channel), channel, after_seqno, CONFLICT)


def test_a_conflict_in_what_is_planned_no_more_is_told_as_lost_commits(fed: Generation, target_dsn: str) -> None:
    with psycopg.connect(target_dsn) as connection:
        connection.execute("DELETE FROM parallel_apply.epoch")
    with pytest.raises(OwnershipLost, match="lost commits"):
        open_point(fed)


def test_a_conflict_parks_its_channel_and_says_what_it_met(fed: Generation) -> None:
    open_point(fed, 1)
    point = state(fed).merging
    assert point is not None
    assert (point.number, point.channel, point.reason, point.table) == (0, 1, ConflictReason.UNIQUE, "public.t")
    assert point.until_seqno == 19, "the end of the conflict's first epoch"
    assert parked(fed) == [False, True, False]


def test_nothing_is_fed_while_channels_merge(fed: Generation) -> None:
    open_point(fed)
    before = state(fed)
    fed.limits = FeedLimits()
    assert fed.make_coordinator(fed.session).feed() == before


def test_a_second_conflict_joins_the_merge_point_that_is_open(fed: Generation) -> None:
    open_point(fed, 0)
    before = state(fed)
    open_point(fed, 1)
    assert state(fed) == before
    assert parked(fed) == [True, True, False]


def test_the_merge_is_handed_out_once_and_not_before_every_unit_under_way_has_ended(fed: Generation) -> None:
    open_point(fed)
    held = claim(fed, 2, "another lane")
    fed.coordinator.merge_points.gather()
    assert claim_merge(fed) is None
    assert parked(fed) == [True, False, False], "a refused gathering parks nothing"
    fed.queue.modify(claimant="another lane", delete=[held.ref])
    fed.coordinator.merge_points.gather()
    fed.coordinator.merge_points.gather()
    task = claim_merge(fed)
    assert task is not None
    assert is_merge(task)
    assert parked(fed) == [True, True, True]
    assert claim_merge(fed) is None


@gated
def test_a_head_that_is_claimed_while_channels_merge_waits_for_the_end(fed: Generation) -> None:
    open_point(fed)
    fed.coordinator.merge_points.join(claim(fed, 1))
    assert parked(fed) == [True, True, False]


def test_a_head_that_comes_too_late_to_wait_is_free_again(fed: Generation) -> None:
    fed.coordinator.merge_points.join(claim(fed, 1))
    assert claim(fed, 1, "another lane").claimant == "another lane"


def test_closing_frees_every_channel_and_goes_on_feeding(fed: Generation) -> None:
    open_point(fed)
    fed.coordinator.merge_points.gather()
    task = claim_merge(fed)
    assert task is not None
    fed.coordinator.merge_points.close(task, 19)
    closed = state(fed)
    assert (closed.merging, closed.merged_count, closed.merged_epoch) == (None, 1, 0)
    assert parked(fed) == [False, False, False]
    assert [claim(fed, channel).sequence for channel in range(3)] == [0, 0, 0]
    with pytest.raises(OwnershipLost):
        fed.coordinator.merge_points.close(task, 19)


@gated
def test_a_stop_asked_while_channels_merge_is_met_after_it(fed: Generation) -> None:
    open_point(fed)
    stopping = fed.coordinator.request_stop()
    assert stopping.phase is Phase.STOPPING
    assert stopping.merging is not None
    fed.coordinator.merge_points.gather()
    task = claim_merge(fed)
    assert task is not None
    fed.coordinator.merge_points.close(task, 19)
    fed.lanes(2)
    assert fed.seqnos() == [stopping.stop_seqno] * 3


def test_a_failed_unit_that_the_merge_would_contain_keeps_it_from_being_handed_out(fed: Generation) -> None:
    open_point(fed)
    failure = UnitFailure(seqno=3, channel=2, message="broken")
    fed.coordinator.fail(claim(fed, 2), failure)
    fed.coordinator.merge_points.gather()
    assert claim_merge(fed) is None


def test_a_failure_above_the_merge_does_not_hinder_it(fed: Generation) -> None:
    open_point(fed)
    fed.coordinator.fail(claim(fed, 2), UnitFailure(seqno=100, channel=2, message="broken"))
    fed.coordinator.merge_points.gather()
    task = claim_merge(fed)
    assert task is not None
    fed.coordinator.merge_points.close(task, 19)
    assert parked(fed) == [False, False, True], "what failed waits for a person"


@gated
def test_conflicts_close_together_make_the_merge_longer_up_to_what_is_fed(fed: Generation) -> None:
    ends = []
    for after_seqno in (-1, 19, 59, 59):
        open_point(fed, after_seqno=after_seqno)
        point = state(fed).merging
        assert point is not None
        ends.append(point.until_seqno)
        fed.coordinator.merge_points.gather()
        task = claim_merge(fed)
        assert task is not None
        fed.coordinator.merge_points.close(task, point.until_seqno)
    assert ends == [19, 59, 99, 99], "one epoch, two, and then all five that are fed"


@gated
def test_a_barrier_ends_a_merge(make: Make, log_url: str) -> None:
    append(
        log_url,
        0,
        [
            *([Change("I", key, str(key))] for key in range(10)),
            [Change("T")],
            *([Change("I", key, str(key))] for key in range(10)),
        ],
    )
    generation = make(3)
    for channel in (1, 2):
        generation.coordinator.finish([claim(generation, channel).ref], then=(), lease=LEASE)
    open_point(generation)
    point = state(generation).merging
    assert point is not None
    assert point.until_seqno == 9
    generation.coordinator.arrive(claim(generation, 1))
    generation.coordinator.merge_points.gather()
    task = claim_merge(generation)
    assert task is not None
    assert is_merge(task)
    assert parked(generation) == [True, True, False], "a barrier is no matter of the merge point"
    generation.coordinator.merge_points.close(task, 9)
    assert parked(generation) == [False, True, False]
    with psycopg.connect(generation.endpoint.url) as connection:
        connection.execute("INSERT INTO t SELECT i, i FROM generate_series(0, 9) i")
        connection.execute("UPDATE parallel_apply.position SET seqno = 9")
    generation.lanes(2)
    assert generation.seqnos() == [20] * 3


@gated
@pytest.mark.parametrize("lanes", [1, 4])
def test_lanes_resolve_every_conflict_between_their_channels(
    make: Make, target_dsn: str, log_url: str, lanes: int
) -> None:
    """Forty keys hand forty unique values round, one step with each transaction."""
    with psycopg.connect(target_dsn) as connection:
        connection.execute("ALTER TABLE t ADD UNIQUE (v)")
    last = append(log_url, 0, [[Change("I", key, f"v{key}")] for key in range(40)])
    make(8).lanes(lanes)
    rounds = [
        [Change("U", key, f"v{(key + step) % 40}") for key in range(40)]
        for step in range(1, 12)
    ]  # fmt: skip
    last = append(log_url, last + 1, rounds)
    generation = make(8)
    reports = generation.lanes(lanes)
    assert generation.seqnos() == [last] * 8
    with psycopg.connect(target_dsn) as connection:
        rows = dict(connection.execute("SELECT id, v FROM t").fetchall())
    assert rows == {key: f"v{(key + 11) % 40}" for key in range(40)}
    counted = sum(found.count for found in generation.ledger.rework() if found.kind is ReworkKind.MERGE_POINT)
    assert counted == sum(report.merge_points for report in reports) == state(generation).merged_count > 0
