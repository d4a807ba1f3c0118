"""The coordinator's state machine: every pair of phases, and what each step does to the value."""

import itertools

import pytest

from airflow_parallel_apply.pipeline.coordinate.state import (
    TRANSITIONS,
    CoordinatorState,
    Phase,
    StopReason,
    UnitFailure,
)
from airflow_parallel_apply.pipeline.errors import FatalError


def state(phase: Phase = Phase.RUNNING, channels: int = 3) -> CoordinatorState:
    return CoordinatorState(phase=phase, channels=channels, fed_epoch=4, fed_seqno=99, until_seqno=120)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Phase, Phase)))
def test_only_the_transitions_of_the_diagram_are_allowed(before: Phase, after: Phase) -> None:
    if after in TRANSITIONS[before]:
        assert state(before).move(after).phase is after
    else:
        with pytest.raises(FatalError, match=f"from {before} to {after}"):
            state(before).move(after)


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
