"""The intervals before a run's own, as its timetable makes them: months, weekdays, and days on which clocks change, are
not all of one length.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import pendulum
from airflow.sdk import CronDataIntervalTimetable, DeltaDataIntervalTimetable
from croniter import croniter  # type: ignore[import-untyped]

from airflow_parallel_apply.pipeline.model.interval import Interval

_TICK = timedelta(microseconds=1)


def interval_before(interval: Interval, timetable: object, *, holding: datetime | None = None) -> Interval:
    """The one directly before an interval, or the one before it that holds a time. Of a timetable of another kind all
    are taken to be as long as the given one.
    """
    time = interval.start - _TICK if holding is None else holding
    match timetable:
        case CronDataIntervalTimetable(expression=expression, timezone=timezone):
            local = pendulum.instance(time).in_timezone(timezone).naive() + _TICK
            start: datetime = croniter(expression, local).get_prev(datetime)
            end: datetime = croniter(expression, start).get_next(datetime)
            return Interval(start=_in_utc(start, timezone), end=_in_utc(end, timezone))
        case DeltaDataIntervalTimetable(delta=delta) if not isinstance(delta, timedelta):
            end = interval.start
            while (start := end - delta) > time:
                end = start
            return Interval(start=start, end=end)
    length = interval.end - interval.start
    start = interval.start + ((time - interval.start) // length) * length
    return Interval(start=start, end=start + length)


def _in_utc(naive: datetime, timezone: str | pendulum.Timezone | pendulum.FixedTimezone) -> datetime:
    return pendulum.instance(naive, tz=timezone).in_timezone("UTC")
