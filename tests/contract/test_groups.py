"""Epoch consistency: groups of epochs through queue, lanes and target, on a log written by hand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import psycopg
import pytest

from airflow_parallel_apply.pipeline.admin.status import read_status
from airflow_parallel_apply.pipeline.apply.committer import group
from airflow_parallel_apply.pipeline.config import Consistency
from airflow_parallel_apply.pipeline.coordinate.feeding import FeedLimits
from airflow_parallel_apply.pipeline.coordinate.grouping import MAX_GROUPS_AHEAD, GroupLimits
from airflow_parallel_apply.pipeline.coordinate.state import Phase
from airflow_parallel_apply.pipeline.coordinate.tasks import PARKED, STOP_SEQUENCE, OrderedWork
from airflow_parallel_apply.pipeline.errors import OwnershipLost, TargetError
from airflow_parallel_apply.pipeline.model.change import BUCKET_COUNT
from airflow_parallel_apply.pipeline.model.epoch import GroupPart, StagedUnit, Unit
from airflow_parallel_apply.queue.model import DependencyError, Task
from tests.contract.test_coordinate import history
from tests.support.generation import Generation
from tests.support.in_memory.history import bucket_of
from tests.support.local_stage import LocalStage
from tests.support.variants import gated
from tests.support.written_log import Change, append

LEASE = timedelta(seconds=30)
APART = FeedLimits(groups=GroupLimits(rows_at_once=0))
"""Each channel stages for itself."""

Make = Callable[..., Generation]


def make_groups(make: Make, channels: int = 3, limits: FeedLimits = APART) -> Generation:
    return make(channels, limits, consistency=Consistency.EPOCH)


@pytest.fixture
def fed(make: Make, log_url: str) -> Generation:
    """Three channels, epochs of 20 changes each, a group of one epoch each; four groups are fed."""
    append(log_url, 0, [[Change("I", key, str(key))] for key in range(200)])
    return make_groups(make, limits=FeedLimits(groups=GroupLimits(rows_at_once=0, bytes_=1)))


def claim(generation: Generation, channel: int, claimant: str = "test") -> Task:
    task = generation.queue.try_claim([generation.names.channel(channel)], claimant=claimant, lease=LEASE)
    assert task is not None
    return task


def claim_commit(generation: Generation) -> Task | None:
    return generation.queue.try_claim([generation.names.serial], claimant="test", lease=LEASE)


def serial(generation: Generation) -> list[OrderedWork]:
    return [OrderedWork.of_task(task) for task in generation.queue.tasks(generation.names.serial)]


def rows(dsn: str) -> dict[int, str | None]:
    with psycopg.connect(dsn) as connection:
        return dict(connection.execute("SELECT id, v FROM t").fetchall())


def staging(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT relname FROM pg_class WHERE starts_with(relname, 's_') AND relkind = 'r'")
        return [name for (name,) in found]


SOME_LANES = pytest.mark.parametrize(
    ("channels", "lanes", "limits"),
    [pytest.param(8, 1, APART, marks=pytest.mark.long), (4, 3, APART), (4, 2, FeedLimits())],
)


def bring_to_the_end(make_one: Callable[[], Generation], target_dsn: str, log_url: str, lanes: int) -> None:
    """Lanes take a random history from its begin to its end, and no group is staged twice."""
    transactions, expected = history(120, seed=40 + lanes)
    last = append(log_url, 0, transactions)
    generation = make_one()
    reports = generation.lanes(lanes)
    assert rows(target_dsn) == expected
    assert generation.seqnos() == [last] * generation.config.channels
    assert generation.coordinator.state().phase is Phase.DRAINED
    assert sum(report.groups for report in reports) > 0
    assert sum(report.restaged_groups for report in reports) == 0
    assert {report.stop_seqno for report in reports} == {last}
    assert staging(target_dsn) == []


# --- tasks ---


def test_so_many_groups_are_fed_as_may_be_staged_ahead(fed: Generation) -> None:
    assert [ordered.work.epoch for ordered in serial(fed)] == [0, 1, 2, 3]
    assert fed.coordinator.feed().fed_epoch == 3


def test_a_commit_is_handed_out_when_all_of_its_channels_have_staged(fed: Generation) -> None:
    for channel in range(3):
        assert claim_commit(fed) is None
        fed.coordinator.groups.arrive(claim(fed, channel), {"rows": channel})
    task = claim_commit(fed)
    assert task is not None
    assert OrderedWork.of_task(task).arrived == {channel: {"rows": channel} for channel in range(3)}


def test_a_group_that_is_complete_waits_for_the_one_before_it(fed: Generation) -> None:
    for channel in (0, 0, 1, 1, 2):
        fed.coordinator.groups.arrive(claim(fed, channel), {})
    first = claim_commit(fed)
    assert first is not None
    assert first.sequence == 0
    fed.coordinator.groups.arrive(claim(fed, 2), {})
    assert claim_commit(fed) is None, "the first is held"
    fed.coordinator.groups.finish(first)
    following = claim_commit(fed)
    assert following is not None
    assert following.sequence == 1


def test_what_a_channel_stages_after_its_claim_was_lost_is_refused(fed: Generation) -> None:
    stale = claim(fed, 0)
    fed.coordinator.give_back(stale)
    claim(fed, 0, "another lane")
    with pytest.raises(DependencyError):
        fed.coordinator.groups.arrive(stale, {})
    assert serial(fed)[0].arrived == {}


def test_what_nothing_waits_for_any_more_is_given_up(fed: Generation) -> None:
    held = claim(fed, 0)
    (commit, *_) = fed.queue.tasks(fed.names.serial)
    fed.queue.modify(claimant="test", delete=[commit.ref])
    with pytest.raises(OwnershipLost):
        fed.coordinator.groups.arrive(held, {})
    assert claim(fed, 0).sequence == 1


def test_a_group_without_rows_awaits_nobody(make: Make, log_url: str) -> None:
    append(log_url, 0, [[] for _ in range(5)])
    generation = make_groups(make)
    assert [(ordered.kind, ordered.awaited) for ordered in serial(generation)] == [("commit", ()), ("stop", ())]


def test_few_rows_are_staged_by_one_task_for_all_channels(make: Make, log_url: str) -> None:
    append(log_url, 0, [[Change("I", key, str(key)) for key in range(30)]])
    generation = make_groups(make, limits=FeedLimits())
    heads = [task for channel in range(3) for task in generation.queue.tasks(generation.names.channel(channel))]
    assert [(task.value["kind"], task.value["rows"]) for task in heads] == [("stage all", 30)]
    assert serial(generation)[0].awaited == (heads[0].value["channel"],)


@gated
def test_groups_grow_with_what_is_staged_ahead_up_to_half_of_what_is_left(make: Make, log_url: str) -> None:
    """The first is limited; each further one holds as much as all before it, while there is as much behind it."""
    append(log_url, 0, [[Change("I", key, "x" * 2**18)] for key in range(400)])
    generation = make_groups(make, limits=FeedLimits(epochs=200, groups=GroupLimits()))
    sizes = [ordered.work.last_seqno - ordered.work.first_seqno + 1 for ordered in serial(generation)]
    assert len(sizes) == MAX_GROUPS_AHEAD
    assert sizes[0] == sizes[1] < sizes[2]
    assert sizes[3] <= (400 - sum(sizes[:3])) / 2


def test_the_stop_is_last_and_awaits_nobody(make: Make, log_url: str) -> None:
    append(log_url, 0, [[Change("I", 1, "a")], [Change("T")], [Change("I", 1, "a")]])
    generation = make_groups(make)
    tasks = generation.queue.tasks(generation.names.serial)
    assert [(task.value["kind"], task.at >= PARKED) for task in tasks] == [
        ("commit", True),
        ("serial", True),
        ("commit", True),
        ("stop", False),
    ]
    assert tasks[-1].sequence == STOP_SEQUENCE


@pytest.mark.parametrize("steered_by", ["in the target"], indirect=True)
def test_the_status_says_which_group_is_next_and_whom_it_waits_for(make: Make, log_url: str) -> None:
    append(log_url, 0, [[Change("I", key, str(key)) for key in range(30)]])
    generation = make_groups(make)
    generation.coordinator.groups.arrive(claim(generation, 0), {})
    claim(generation, 1)
    status = read_status(generation.endpoint, "p")
    assert (status.consistency, status.commit) == (
        "epoch",
        "transactions 0 to 0 wait for what channels 1, 2 stage",
    )
    assert [(channel.state, channel.waits_for) for channel in status.channels] == [
        ("waiting", "the commit of what is staged"),
        ("staging", ""),
        ("waiting", "a lane"),
    ]


# --- recovery ---


def test_tasks_that_fit_stay(fed: Generation) -> None:
    fed.coordinator.groups.arrive(claim(fed, 0), {})
    assert not fed.coordinator.recover()


@gated
def test_a_part_that_nobody_will_stage_is_fed_anew(fed: Generation) -> None:
    fed.queue.modify(claimant="test", delete=[claim(fed, 1).ref])
    assert fed.coordinator.recover()
    fed.lanes(2)
    assert fed.seqnos() == [199] * 3


@gated
def test_a_commit_that_the_target_has_lost_is_fed_anew(fed: Generation, target_dsn: str) -> None:
    for channel in range(3):
        fed.coordinator.groups.arrive(claim(fed, channel), {})
    first = claim_commit(fed)
    assert first is not None
    fed.coordinator.groups.finish(first)
    assert fed.coordinator.recover()
    fed.lanes(2)
    assert rows(target_dsn) == {key: str(key) for key in range(200)}


# --- lanes ---


@gated
@SOME_LANES
def test_lanes_bring_all_channels_to_the_end_together(
    make: Make, target_dsn: str, log_url: str, channels: int, lanes: int, limits: FeedLimits
) -> None:
    bring_to_the_end(partial(make_groups, make, channels, limits), target_dsn, log_url, lanes)


@gated
def test_more_staged_tables_than_a_queue_may_keep_are_staged_again(
    fed: Generation, target_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "_MOST_BYTES", 300)
    reports = fed.lanes(2)
    assert rows(target_dsn) == {key: str(key) for key in range(200)}
    assert sum(report.restaged_groups for report in reports) == 10
    assert staging(target_dsn) == []


@gated
def test_a_stop_in_the_middle_leaves_one_seqno_and_a_run_of_the_other_consistency_goes_on(
    make: Make, target_dsn: str, log_url: str
) -> None:
    transactions, expected = history(200, seed=3)
    last = append(log_url, 0, transactions)
    generation = make_groups(make, 4, FeedLimits(epochs=3, groups=GroupLimits(rows_at_once=0)))
    asked = generation.coordinator.request_stop()
    generation.lanes(2)
    assert asked.stop_seqno is not None
    assert generation.seqnos() == [asked.stop_seqno] * 4
    make(4).lanes(2)
    assert rows(target_dsn) == expected
    assert set(make(4).seqnos()) == {last}


@gated
def test_channels_that_a_failed_run_left_apart_are_brought_together_first(
    make: Make, target_dsn: str, log_url: str
) -> None:
    keys = range(1, 41)
    refused = next(key for key in keys if bucket_of(key) * 4 // BUCKET_COUNT == 3)
    transactions = [[Change("I", key, "a")] for key in keys] + [[Change("U", key, "b")] for key in keys] * 3
    last = append(log_url, 0, transactions)
    with psycopg.connect(target_dsn) as connection:
        connection.execute(f"ALTER TABLE t ADD CHECK (id <> {refused})")
    failing = make(4)
    failing.lane(0)
    assert failing.coordinator.state().phase is Phase.FAILED
    assert len(set(failing.seqnos())) > 1, "its own channel is served first"
    with psycopg.connect(target_dsn) as connection:
        connection.execute("ALTER TABLE t DROP CONSTRAINT t_id_check")
    generation = make_groups(make, 4)
    reports = generation.lanes(2)
    assert sum(report.merge_points for report in reports) == 1
    assert generation.seqnos() == [last] * 4
    assert rows(target_dsn) == dict.fromkeys(keys, "b")


@gated
def test_what_is_refused_leaves_whole_epochs_before_it_in_place_and_says_where(
    make: Make, target_dsn: str, log_url: str
) -> None:
    last = append(log_url, 0, [[Change("I", key, "a"), Change("I", 1000 + key, "a")] for key in range(100)])
    with psycopg.connect(target_dsn) as connection:
        connection.execute("ALTER TABLE t ADD CHECK (id <> 45)")
    failing = make_groups(make)
    failing.lanes(2)
    state = failing.coordinator.state()
    assert state.phase is Phase.FAILED
    assert state.failure is not None
    assert failing.seqnos() == [39] * 3, "an epoch has ten of these transactions"
    assert state.failure.seqno == 40
    assert set(rows(target_dsn)) == {key + part for key in range(40) for part in (0, 1000)}
    with psycopg.connect(target_dsn) as connection:
        connection.execute("ALTER TABLE t DROP CONSTRAINT t_id_check")
    fixed = make_groups(make)
    fixed.lanes(2)
    assert fixed.seqnos() == [last] * 3


@gated
@pytest.mark.parametrize(("rows_at_once", "refused"), [(0, GroupPart(2, 1)), (None, GroupPart(2, None))])
def test_a_failure_in_staging_lets_the_groups_below_it_commit(
    make: Make,
    log_url: str,
    target_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    rows_at_once: int | None,
    refused: GroupPart,
) -> None:
    append(log_url, 0, [[Change("I", key, str(key))] for key in range(200)])
    fed = make_groups(make, limits=FeedLimits(groups=GroupLimits(rows_at_once=rows_at_once, bytes_=1)))
    stage = LocalStage.stage

    def refusing(self: LocalStage, unit: Unit) -> StagedUnit:
        if unit.kind == refused:
            raise TargetError("broken", seqno=45)
        return stage(self, unit)

    monkeypatch.setattr(LocalStage, "stage", refusing)
    fed.lanes(2)
    state = fed.coordinator.state()
    assert state.phase is Phase.FAILED
    assert state.failure is not None
    assert (state.failure.seqno, state.failure.channel) == (40, refused.channel)
    assert fed.seqnos() == [39] * 3
    assert set(rows(target_dsn)) == set(range(40))


@gated
def test_unique_values_change_hands_between_channels_inside_groups(make: Make, target_dsn: str, log_url: str) -> None:
    with psycopg.connect(target_dsn) as connection:
        connection.execute("ALTER TABLE t ADD UNIQUE (v)")
    first = [[Change("I", key, f"v{key}")] for key in range(40)]
    rounds = [[Change("U", key, f"v{(key + step) % 40}") for key in range(40)] for step in range(1, 12)]
    last = append(log_url, 0, [*first, *[[*(Change("U", key, None) for key in range(40)), *group] for group in rounds]])
    generation = make_groups(make, 8)
    reports = generation.lanes(4)
    assert generation.seqnos() == [last] * 8
    assert rows(target_dsn) == {key: f"v{(key + 11) % 40}" for key in range(40)}
    assert sum(report.replayed_units for report in reports) == 0
