"""Reads stretches of a log for the engine: each row once, in groups of segments, with a mark behind each group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime

from airflow_parallel_apply.pipeline.log.protocol import LogReader, Segment
from airflow_parallel_apply.pipeline.store.protocol import Stretch
from airflow_parallel_apply.router.engine import Reached, Tagged
from airflow_parallel_apply.router.feeding.history import ReadHistory

Guard = Callable[[int, datetime], None]
"""Called before rows are read: with their last seqno, and the greatest commit time up to it. May wait."""


def rows_of(
    log: LogReader, stretches: Iterable[Stretch], guard: Guard, history: ReadHistory
) -> Iterator[Tagged | Reached]:
    """Read the stretches, in order; the rows of a group come as its segments have them. Errors: `LogError`."""
    for stretch in stretches:
        after = stretch.after_seqno
        for last, commit_time in _groups(log.state().segments, stretch):
            guard(last, commit_time)
            history.add(log.transactions(after, last))
            for batch in log.rows(after, last):
                yield Tagged(batch=batch, first_seqno=after + 1, last_seqno=last)
            yield Reached(last)
            after = last
        yield Reached(stretch.last_seqno)


def _groups(segments: Sequence[Segment], stretch: Stretch) -> Iterator[tuple[int, datetime]]:
    """Last seqno and commit time of each group that a stretch has: a segment, and those that begin inside of its last
    transaction, which are read together.
    """
    found = [one for one in segments if one.last_seqno > stretch.after_seqno and one.first_seqno <= stretch.last_seqno]
    for number, segment in enumerate(found):
        if number + 1 == len(found) or not found[number + 1].is_cut:
            yield min(segment.last_seqno, stretch.last_seqno), segment.last_commit_time
