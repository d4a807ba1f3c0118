"""The interval guard: the router waits for the slowest channel, and never for long."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

from airflow_parallel_apply.router.feeding.guard import GuardLimits, IntervalGuard

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def minutes(number: int) -> datetime:
    return NOON + timedelta(minutes=number)


def test_the_interval_guard_waits_for_the_slowest_channel_and_no_longer_than_it_may() -> None:
    guard = IntervalGuard(GuardLimits(interval=timedelta(minutes=5), patience=timedelta(hours=1)))
    guard.wait(10, minutes(0))
    guard.wait(20, minutes(4))
    has_read = threading.Event()

    def read() -> None:
        guard.wait(30, minutes(9))
        has_read.set()

    reading = threading.Thread(target=read)
    reading.start()
    assert not has_read.wait(0.2)
    guard.passed(10)
    assert has_read.wait(120)
    reading.join()
    bounded = IntervalGuard(GuardLimits(interval=timedelta(minutes=5), patience=timedelta(milliseconds=50)))
    bounded.wait(10, minutes(0))
    bounded.wait(20, minutes(60))
    assert bounded.waited_seconds >= 0.05


def test_the_interval_guard_never_holds_up_who_waits_nor_follows_a_clock_that_goes_back() -> None:
    guard = IntervalGuard(GuardLimits(interval=timedelta(minutes=5), patience=timedelta(hours=1)))
    guard.wait(10, minutes(60))
    guard.wait(20, minutes(60))
    guard.reader(1)
    guard.wait(30, minutes(120))
    guard.reader(-1)
    guard.close()
    guard.wait(40, minutes(500))
    assert guard.waited_seconds < 5
