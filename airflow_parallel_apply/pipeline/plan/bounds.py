"""The end of a run: a frozen offset or time, and the seqno that it turns out to be (law 11).

A time's boundary is the first seqno whose *running maximum* of commit times reaches it; what lies before belongs to
the time. The maximum first reaches a time at the first transaction that itself does, so the boundary needs no sums.
It is monotone whatever the source's clock did: set back, or equal for many, or far ahead for a while.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.log.schema import TRANSACTIONS
from airflow_parallel_apply.pipeline.model.offset import Offset


def last_seqno_at(log: LogReader, until_offset: Offset) -> int | None:
    """The last transaction that ended at or below an offset; None while the log is not captured that far."""
    state = log.state()
    if state.captured_offset < until_offset:
        return None
    for segment in reversed(state.segments):
        transactions = log.transactions(segment.first_seqno - 1, segment.last_seqno)
        inside = transactions.filter(pc.less_equal(transactions.column("end_offset"), until_offset))
        if inside.num_rows:
            return int(pc.max(inside.column("seqno")).as_py())
    return state.purged_seqno


def boundary(log: LogReader, time: datetime) -> int | None:
    """The first transaction whose running maximum of commit times reaches `time`; None while none of the log does."""
    state = log.state()
    if state.purged_time is not None and time <= state.purged_time:
        # In what was purged, and so below every position: which one it was makes no difference any more.
        return state.purged_seqno
    segments = state.segments
    # A segment knows the maximum up to its end, so one of them has to be read.
    index = bisect_left(segments, time, key=lambda segment: segment.last_commit_time)
    if index == len(segments):
        return None
    segment = segments[index]
    transactions = log.transactions(segment.first_seqno - 1, segment.last_seqno)
    reaching = transactions.filter(pc.greater_equal(transactions.column("commit_time"), _as_stored(time)))
    return int(pc.min(reaching.column("seqno")).as_py())


def _as_stored(time: datetime) -> pa.Scalar:
    return pa.scalar(time.astimezone(UTC), TRANSACTIONS.field("commit_time").type)


def last_seqno_of_run(log: LogReader, until_offset: Offset, until_time: datetime | None) -> int | None:
    """The last transaction of a run: at or below its offset and, where it has one, before its time's boundary.

    None while the log is not captured so far that this is known. The offset of a run with a time is one at which the
    source was past that time: it decides where nothing was committed since.
    """
    by_offset = last_seqno_at(log, until_offset)
    first_after = None if until_time is None else boundary(log, until_time)
    if first_after is None:
        return by_offset
    return first_after - 1 if by_offset is None else min(first_after - 1, by_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Transactions that no run has applied, before the interval of one that is to start."""

    first_seqno: int
    last_seqno: int
    """As far as the log is captured: behind it there may be more."""
    since: datetime
    """Running maximum of commit times at the first of them: the interval that holds it is the one to run first."""
    until: datetime
    """The same at the last of them: intervals behind it have no part in the gap."""


def gap_before(log: LogReader, applied_seqno: int, start: datetime) -> Gap | None:
    """The gap between the applied transactions and an interval's start; None where nothing is captured there."""
    first = applied_seqno + 1
    captured = log.state().last_seqno
    if captured < first:
        return None
    end = boundary(log, start)
    if end is not None and end <= first:
        return None
    last = captured if end is None else end - 1
    return Gap(
        first_seqno=first, last_seqno=last, since=_running_maximum(log, first), until=_running_maximum(log, last)
    )


def _running_maximum(log: LogReader, seqno: int) -> datetime:
    """The greatest commit time up to `seqno`, which the log has."""
    state = log.state()
    segments = state.segments
    index = bisect_left(segments, seqno, key=lambda segment: segment.last_seqno)
    times = log.transactions(segments[index].first_seqno - 1, seqno).column("commit_time")
    latest: datetime = pc.max(times).as_py()
    before = state.purged_time if index == 0 else segments[index - 1].last_commit_time
    return latest if before is None else max(latest, before)
