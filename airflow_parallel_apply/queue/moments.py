"""Times as counts of microseconds since 1970 in UTC, and back: what is written down, sent, and calculated with."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def microseconds(moment: datetime) -> int:
    """Since 1970, in UTC."""
    # As a plain time: subclasses such as pendulum's subtract in ways of their own.
    return datetime.__sub__(moment, _EPOCH) // _MICROSECOND


def moment_of(count: int) -> datetime:
    """The inverse of `microseconds`."""
    return _EPOCH + timedelta(microseconds=count)
