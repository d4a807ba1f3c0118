"""How long a transient error is put up with."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.apply.retry import retrying
from airflow_parallel_apply.pipeline.errors import TargetError, Unavailable


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_call_that_worked_for_an_hour_is_retried_after_its_first_failure() -> None:
    clock, told = Clock(), []

    def work() -> str:
        clock.now += 3600.0
        if not told:
            raise Unavailable("the server restarted")
        return "done"

    assert retrying(work, on_retry=told.append, clock=clock) == "done"
    assert len(told) == 1


def test_trouble_without_progress_ends_with_the_last_error() -> None:
    clock = Clock()

    def work() -> None:
        clock.now += 130.0
        raise Unavailable(f"down at {clock.now:.0f}")

    with pytest.raises(Unavailable, match="down at 260"):
        retrying(work, on_retry=lambda error: None, clock=clock)


def test_progress_between_two_failures_makes_the_second_one_a_first_one() -> None:
    clock, units = Clock(), [0]

    def work() -> int:
        clock.now += 3600.0
        units[0] += 1
        if units[0] < 4:
            raise Unavailable("the server restarted")
        return units[0]

    assert retrying(work, on_retry=lambda error: None, progress=lambda: units[0], clock=clock) == 4


def test_an_error_that_lasts_is_not_retried() -> None:
    def work() -> None:
        raise TargetError("no")

    with pytest.raises(TargetError):
        retrying(work, on_retry=lambda error: pytest.fail("retried"))
