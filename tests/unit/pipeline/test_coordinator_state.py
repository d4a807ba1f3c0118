"""The coordinator's state machine: every pair of phases, and what each step does to the value."""

import itertools
from dataclasses import replace

import pytest

from airflow_parallel_apply.pipeline.coordinate.state import (
    TRANSITIONS,
    CoordinatorState,
    MergePoint,
    Phase,
    StopReason,
    UnitFailure,
)
from airflow_parallel_apply.pipeline.errors import ConflictReason, FatalError


def state(phase: Phase = Phase.RUNNING, channels: int = 3) -> CoordinatorState:
    return CoordinatorState(phase=phase, channels=channels, fed_epoch=4, fed_seqno=99, until_seqno=120)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Phase, Phase)))
def test_only_the_transitions_of_the_diagram_are_allowed(before: Phase, after: Phase) -> None:
    if after in TRANSITIONS[before]:
        assert state(before).enter(after).phase is after
    else:
        with pytest.raises(FatalError, match=f"from {before} to {after}"):
            state(before).enter(after)


def test_a_stop_is_at_the_seqno_of_the_last_fed_epoch() -> None:
    stopping = state().stopping(StopReason.ASKED)
    assert (stopping.phase, stopping.stop_seqno, stopping.stop_reason) == (Phase.STOPPING, 99, StopReason.ASKED)


def test_the_last_acknowledgement_drains() -> None:
    stopping = state().stopping(StopReason.END)
    assert stopping.acknowledge(2).acknowledge(0).phase is Phase.STOPPING
    assert stopping.acknowledge(2).acknowledge(0).acknowledge(1).phase is Phase.DRAINED


def test_an_acknowledgement_given_twice_counts_once() -> None:
    stopping = state(channels=2).stopping(StopReason.END)
    assert stopping.acknowledge(1).acknowledge(1).phase is Phase.STOPPING


def test_the_failure_with_the_least_seqno_is_kept() -> None:
    first = UnitFailure(seqno=50, channel=1, message="a")
    earlier = UnitFailure(seqno=40, channel=0, message="b")
    later = UnitFailure(seqno=60, channel=2, message="c")
    assert state().fail(first).fail(later).failure == first
    assert state().fail(first).fail(earlier).failure == earlier


def test_acknowledgements_after_a_failure_never_drain() -> None:
    failed = state(channels=1).stopping(StopReason.END).fail(UnitFailure(seqno=1, channel=0, message="x"))
    assert failed.acknowledge(0).phase is Phase.FAILED


def test_json_round_trip() -> None:
    full = state().stopping(StopReason.END).acknowledge(1).fail(UnitFailure(seqno=7, channel=None, message="m"))
    assert CoordinatorState.from_json(full.to_json()) == full
    assert CoordinatorState.from_json(state().to_json()) == state()
    merging = state().merge(point(), is_dense=True)
    assert CoordinatorState.from_json(merging.to_json()) == merging


def point(number: int = 0) -> MergePoint:
    return MergePoint(number=number, channel=1, reason=ConflictReason.UNIQUE, table="public.t", until_seqno=50)


def test_one_merge_point_at_a_time() -> None:
    merging = state().merge(point(), is_dense=False)
    with pytest.raises(FatalError, match="merge point 0 is open already"):
        merging.merge(point(1), is_dense=False)
    merged = merging.merged(3)
    assert (merged.merging, merged.merged_count, merged.merged_epoch) == (None, 1, 3)
    with pytest.raises(FatalError, match="no merge point is open"):
        merged.merged(4)


def test_merge_points_close_together_make_a_streak_and_others_end_it() -> None:
    streaks, now = [], state()
    for is_dense in (False, True, True, False):
        now = now.merge(point(), is_dense=is_dense)
        streaks.append(now.merge_streak)
        now = now.merged(1)
    assert streaks == [0, 1, 2, 0]


def test_a_phase_may_change_while_channels_merge() -> None:
    merging = state().merge(point(), is_dense=False)
    assert merging.stopping(StopReason.ASKED).merged(1).phase is Phase.STOPPING
    assert merging.fail(UnitFailure(seqno=1, channel=0, message="x")).merging == point()


def test_only_what_starts_above_the_failure_is_held_up() -> None:
    failed = state().fail(UnitFailure(seqno=50, channel=1, message="a"))
    assert [failed.fails_below(seqno) for seqno in (49, 50, 51)] == [False, False, True]
    assert not state().fails_below(99)


def test_the_groups_ahead_lie_in_the_channels_queues_in_turn() -> None:
    assert state().channels_in_turn == ()
    ahead = replace(state(), groups_ahead=((10, 5), (20, 6)), group_count=4)
    assert (ahead.channels_in_turn, ahead.bytes_ahead) == ((2, 0), 11)
    more = replace(ahead, groups_ahead=((10, 5), (20, 6), (30, 1), (40, 1)), group_count=6)
    assert more.channels_in_turn == (2, 0, 1)
