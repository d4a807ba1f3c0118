"""Law 4 where units are taken together or one behind the other, and stops beside channels that are ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest

from airflow_parallel_apply.pipeline.apply.signals import Cancelled
from airflow_parallel_apply.pipeline.coordinate.coordinator import Coordinator
from airflow_parallel_apply.pipeline.coordinate.feeding import FeedLimits
from airflow_parallel_apply.pipeline.coordinate.state import Phase, UnitFailure
from airflow_parallel_apply.queue.model import Task, TaskRef
from tests.contract.test_coordinate import history, rows
from tests.support.generation import Generation
from tests.support.variants import gated
from tests.support.written_log import Change, append

Make = Callable[..., Generation]

EPOCH = 20
"""Changes in an epoch, and, with one in each transaction, transactions."""


@pytest.fixture
def long(make: Make, log_url: str) -> Generation:
    """Two channels with twenty epochs."""
    append(log_url, 0, [[Change("I", key, "a")] for key in range(20 * EPOCH)])
    return make(2)


def fail(generation: Generation, channel: int, seqno: int) -> None:
    """A unit of the channel fails at a seqno, before which the channel was applied by nobody."""
    head = generation.queue.try_claim([generation.names.channel(channel)], claimant="test", lease=timedelta(seconds=30))
    assert head is not None
    generation.coordinator.fail(head, UnitFailure(seqno=seqno, channel=channel, message="broken"))


def test_what_is_taken_together_starts_nowhere_above_a_failure(long: Generation) -> None:
    fail(long, 1, 5)
    long.lane()
    assert long.seqnos() == [EPOCH - 1, -1]


@gated
def test_a_failure_that_is_recorded_as_a_unit_ends_stops_the_next_one(
    long: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the lane has looked, and before its modify."""
    finish = Coordinator.finish

    def late(self: Coordinator, done: Sequence[TaskRef], *, then: Sequence[Task], lease: timedelta) -> Task | None:
        monkeypatch.setattr(Coordinator, "finish", finish)
        fail(long, 1, EPOCH)
        return self.finish(done, then=then, lease=lease)

    monkeypatch.setattr("airflow_parallel_apply.pipeline.apply.committer.channel._FIRST_UNIT_BYTES", 1)
    monkeypatch.setattr(Coordinator, "finish", late)
    long.lane()
    committed = long.seqnos()[0]
    assert committed == 2 * EPOCH - 1, "the epoch that starts at the failure, and none above it"


@gated
def test_a_stop_on_a_run_that_has_just_opened_is_not_below_channels_that_are_ahead(
    make: Make, log_url: str, target_dsn: str
) -> None:
    transactions, expected = history(200, seed=8, truncates=False)
    append(log_url, 0, transactions)
    crashed = make(4)
    with pytest.raises(Cancelled):
        crashed.lane(cancelled=lambda: len(set(crashed.seqnos())) > 1)
    ahead = max(crashed.seqnos())
    assert len(set(crashed.seqnos())) > 1
    opened = make(4, FeedLimits(epochs=1), fed=False)
    stopped = opened.coordinator.request_stop()
    assert stopped.stop_seqno is not None
    assert stopped.stop_seqno >= ahead
    opened.lanes(2)
    assert opened.coordinator.state().phase is Phase.DRAINED
    assert set(opened.seqnos()) == {stopped.stop_seqno}
    make(4).lanes(2)
    assert rows(target_dsn) == expected
