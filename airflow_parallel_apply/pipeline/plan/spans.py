"""Cuts transactions into epochs: transactions in, spans of them out. Loops over epochs, never over transactions.

Units:   an epoch closes before it would pass `max_changes` rows, `max_bytes` of values, `max_transactions` or
         `max_duration` of commit time, before a critical transaction, at a cut (the frozen end of a run), and at the
         end of what is there. One transaction larger than the limits is an epoch by itself. A critical transaction is a
         serial epoch; where such lie so densely that what is between them is not worth a drain each, they and what is
         between them are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import numpy as np
import numpy.typing as npt

from airflow_parallel_apply.pipeline.model.epoch import EpochKind, Reason

_SMALL_ROWS: Final = 2_000
"""Rows between two barriers up to which one lane replays them sooner than the channels would drain for them."""

_SMALL_CRITICAL_ROWS: Final = 500
"""A critical transaction with more rows may be a large load: it stays an epoch of its own, which is applied in sets."""

_SMALL_IMAGES: Final = 300
"""Changes of tables without a key: a replay looks through the table for each of them, a merge once for all."""

_FUSED_ROWS: Final = 10_000
_FUSED_BYTES: Final = 16 * 2**20
"""A lane holds it in memory and applies most of it in one transaction: some seconds of work, for which a stop waits and
which a crash does again.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochLimits:
    """Limits on the size of an epoch. `max_transactions` and `max_duration`, of commit time, bound how far the position
    of a channel without rows falls behind: the end of an epoch is a sync there.
    """

    max_changes: int
    max_bytes: int
    max_transactions: int = 100_000
    max_duration: timedelta = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transactions:
    """A gapless run of them, one an element. `critical`: why, by index, of those that run alone. `image_counts`:
    changes of rows that are found by their image alone. `commit_times`: in microseconds.
    """

    seqnos: npt.NDArray[np.int64]
    row_counts: npt.NDArray[np.int64]
    byte_counts: npt.NDArray[np.int64]
    image_counts: npt.NDArray[np.int64]
    commit_times: npt.NDArray[np.int64]
    critical: Mapping[int, Reason]


@dataclass(frozen=True, slots=True)
class Span:
    """Transactions [first, last] (indexes) of an epoch to be."""

    first: int
    last: int
    kind: EpochKind
    reason: Reason


def cut_spans(transactions: Transactions, limits: EpochLimits, cuts: Sequence[int]) -> list[Span]:
    """All of them, in order. A `cut` is a seqno that ends an epoch."""
    return list(_fused(list(_spans(transactions, limits, cuts)), transactions, limits, cuts))


def _spans(transactions: Transactions, limits: EpochLimits, cuts: Sequence[int]) -> Iterator[Span]:
    critical, seqnos = transactions.critical, transactions.seqnos
    rows_after, bytes_after = np.cumsum(transactions.row_counts), np.cumsum(transactions.byte_counts)
    stops = np.array(sorted(critical), dtype=np.int64)
    # The greatest so far, so that a clock that goes backwards cuts nothing.
    times, duration = np.maximum.accumulate(transactions.commit_times), limits.max_duration // timedelta(microseconds=1)
    cut_ends = np.searchsorted(seqnos, np.array(sorted(cuts), dtype=np.int64), side="right")
    at, end = 0, len(seqnos)
    while at < end:
        if at in critical:
            yield Span(at, at, EpochKind.SERIAL, critical[at])
            at += 1
            continue
        rows_before = rows_after[at - 1] if at else 0
        bytes_before = bytes_after[at - 1] if at else 0
        # Each candidate is the index of the first transaction that is not in the epoch any more.
        # Of equal ones the first tells why.
        candidates = [
            (end, Reason.END),
            (_first_above(cut_ends, at, end), Reason.END),
            (_first_above(stops, at, end), Reason.BEFORE_CRITICAL),
            (int(np.searchsorted(rows_after, rows_before + limits.max_changes, side="right")), Reason.CHANGES),
            (int(np.searchsorted(bytes_after, bytes_before + limits.max_bytes, side="right")), Reason.BYTES),
            (at + limits.max_transactions, Reason.TRANSACTIONS),
            (int(np.searchsorted(times, times[at] + duration, side="right")), Reason.TIME),
        ]
        stop, reason = min(candidates, key=lambda candidate: candidate[0])
        stop = max(stop, at + 1)
        yield Span(at, stop - 1, EpochKind.PARALLEL, reason)
        at = stop


def _fused(
    spans: Sequence[Span], transactions: Transactions, limits: EpochLimits, cuts: Sequence[int]
) -> Iterator[Span]:
    """Small neighbours, at least two of them serial, as one serial span; the others as they are."""
    rows_before = np.concatenate(([0], np.cumsum(transactions.row_counts)))
    bytes_before = np.concatenate(([0], np.cumsum(transactions.byte_counts)))
    images_before = np.concatenate(([0], np.cumsum(transactions.image_counts)))
    max_rows, max_bytes = min(limits.max_changes, _FUSED_ROWS), min(limits.max_bytes, _FUSED_BYTES)
    ends = frozenset(cuts)

    def is_small(span: Span) -> bool:
        most = _SMALL_CRITICAL_ROWS if span.kind is EpochKind.SERIAL else _SMALL_ROWS
        return bool(
            rows_before[span.last + 1] - rows_before[span.first] <= most
            and images_before[span.last + 1] - images_before[span.first] <= _SMALL_IMAGES
        )

    def fits(first: Span, last: Span) -> bool:
        return bool(
            rows_before[last.last + 1] - rows_before[first.first] <= max_rows
            and bytes_before[last.last + 1] - bytes_before[first.first] <= max_bytes
        )

    near: list[Span] = []
    for span in spans:
        if near and not (
            is_small(near[-1])
            and is_small(span)
            and fits(near[0], span)
            and int(transactions.seqnos[near[-1].last]) not in ends
        ):
            yield from _as_one(near)
            near = []
        near.append(span)
    yield from _as_one(near)


def _as_one(near: Sequence[Span]) -> Sequence[Span]:
    if sum(span.kind is EpochKind.SERIAL for span in near) < 2:
        return near
    return [Span(near[0].first, near[-1].last, EpochKind.SERIAL, Reason.DENSE_BARRIERS)]


def _first_above(ordered: npt.NDArray[np.int64], at: int, end: int) -> int:
    index = int(np.searchsorted(ordered, at, side="right"))
    return int(ordered[index]) if index < len(ordered) else end
