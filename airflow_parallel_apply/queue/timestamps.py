"""Times as counts of microseconds since 1970 in UTC, and back: what is written down, sent, and calculated with.

Tasks that came or were claimed in one call share their times, so the last ones are remembered.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_REMEMBERED: Final = 1024


def microseconds(moment: datetime) -> int:
    """Since 1970, in UTC."""
    # Of other zones none is remembered: when their clocks are turned back, an hour's times come twice, and are equal.
    return utc_microseconds(moment) if moment.tzinfo is UTC else _microseconds(moment)


@lru_cache(maxsize=_REMEMBERED)
def moment_of(count: int) -> datetime:
    """The inverse of `microseconds`."""
    return _EPOCH + timedelta(microseconds=count)


def _microseconds(moment: datetime) -> int:
    # As a plain time: subclasses such as pendulum's subtract in ways of their own.
    return datetime.__sub__(moment, _EPOCH) // _MICROSECOND


utc_microseconds: Final = lru_cache(maxsize=_REMEMBERED)(_microseconds)
"""As `microseconds`, of a moment that is in UTC, as all times of tasks are: a call less."""
