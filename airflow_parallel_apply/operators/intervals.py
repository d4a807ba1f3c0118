"""The intervals before a run's own, as its timetable makes them: months, weekdays, and days on which clocks change, are
not all of one length.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TypeGuard

import pendulum
from airflow.sdk import CronDataIntervalTimetable, DeltaDataIntervalTimetable
from croniter import croniter  # type: ignore[import-untyped]

from airflow_parallel_apply.pipeline.model.interval import Interval

TICK = timedelta(microseconds=1)
_Zone = pendulum.Timezone | pendulum.FixedTimezone
_WithoutHoles = CronDataIntervalTimetable | DeltaDataIntervalTimetable


def leaves_no_holes(timetable: object) -> TypeGuard[_WithoutHoles]:
    """Whether each interval ends where the next one begins. A trigger timetable's may be shorter than its period, and
    of a timetable of the user's own nobody knows.
    """
    return isinstance(timetable, _WithoutHoles)


def interval_before(interval: Interval, timetable: _WithoutHoles, *, holding: datetime | None = None) -> Interval:
    """The one directly before an interval, or the one before it that holds a time."""
    time = interval.start - TICK if holding is None else holding
    match timetable:
        case CronDataIntervalTimetable(expression=expression, timezone=timezone):
            start = _beside(time + TICK, expression, timezone, "get_prev")
            return Interval(start=start, end=_beside(start, expression, timezone, "get_next"))
        case DeltaDataIntervalTimetable(delta=delta) if not isinstance(delta, timedelta):
            end = interval.start
            while (start := end - delta) > time:
                end = start
            return Interval(start=start, end=end)
    length = interval.end - interval.start
    start = interval.start + ((time - interval.start) // length) * length
    return Interval(start=start, end=start + length)


def _beside(time: datetime, expression: str, timezone: str | _Zone, step: str) -> datetime:
    """The tick before or behind a time, as the scheduler finds it: through the hour that clocks show twice, or not at
    all, only what ticks at every hour ticks on.
    """
    zone = pendulum.timezone(timezone) if isinstance(timezone, str) else timezone
    naive = pendulum.instance(time).in_timezone(zone).naive()
    cron = croniter(expression, naive)
    while True:
        local = getattr(cron, step)(datetime)
        found: datetime = (
            time + (local - naive)
            if cron.expanded[1] == ["*"]
            else pendulum.instance(zone.convert(local.replace(fold=1))).in_timezone("UTC")
        )
        # What was to tick in an hour that was left out ticks behind it.
        if (found < time) == (step == "get_prev"):
            return found
