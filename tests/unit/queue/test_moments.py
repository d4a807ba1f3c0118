"""Times as microseconds: exact, both ways, in every zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from airflow_parallel_apply.queue.timestamps import microseconds, moment_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=-7)), ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kathmandu")])


@given(st.datetimes(timezones=ZONES, min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)))
def test_microseconds_and_back_are_the_same_moment_in_utc(moment: datetime) -> None:
    expected = moment.astimezone(UTC)
    assert EPOCH + microseconds(moment) * timedelta(microseconds=1) == expected
    assert moment_of(microseconds(moment)) == expected
    assert moment_of(microseconds(moment)).tzinfo is UTC


def test_an_hour_that_comes_twice_is_two_hours() -> None:
    """The two are equal for Python, so one that was remembered must not stand for the other."""
    first = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    second = first.replace(fold=1)
    assert first == second
    assert microseconds(second) - microseconds(first) == timedelta(hours=1) // timedelta(microseconds=1)
