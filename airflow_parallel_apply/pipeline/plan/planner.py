"""The planner: log in, epochs out. The only place that decides where an epoch ends and what is critical.

Shape:   transactions (after_seqno, last_seqno] of a log → epochs, contiguous, in order, every transaction in one.
Units:   an epoch closes before it would pass `max_changes` rows or `max_bytes` of values, before a critical
         transaction, at a cut (the frozen end of a run), and at the end of what is captured. One transaction larger
         than the limits is an epoch by itself.
Errors:  `LogError` from the log.
Source:  Tungsten's partitioner pass over the log, which marks serialization points before anyone reads past them.

It loops over epochs, never over transactions or rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.epoch import Epoch, EpochKind, Reason
from airflow_parallel_apply.pipeline.event import Mark
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.partition.open import open_partitioner
from airflow_parallel_apply.pipeline.partition.protocol import CRITICAL, UNKNOWN, Partitioner
from airflow_parallel_apply.pipeline.partition.routing import Routing

_REASON_OF_MARK = {
    Mark.MESSAGE: Reason.DDL,
    Mark.TRUNCATE: Reason.TRUNCATE,
    Mark.RELATION: Reason.RELATION,
    Mark.KEY_UNSENT: Reason.KEY_UNSENT,
}
"""In order of telling: a transaction with several marks names the first of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochLimits:
    """How large an epoch may grow."""

    max_changes: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class _Span:
    """Transactions [first, last] (indexes) of an epoch to be."""

    first: int
    last: int
    kind: EpochKind
    reason: Reason


def plan_epochs(
    log: LogReader,
    *,
    after_seqno: int,
    last_seqno: int,
    first_number: int,
    routing: Routing,
    limits: EpochLimits,
    cuts: Sequence[int] = (),
) -> tuple[Epoch, ...]:
    """Plan (after_seqno, last_seqno]; the first epoch gets `first_number`. A `cut` is a seqno that ends an epoch."""
    if last_seqno <= after_seqno:
        return ()
    table = log.transactions(after_seqno, last_seqno)
    seqnos = table.column("seqno").to_numpy()
    byte_counts = table.column("byte_count").to_numpy()
    reasons = _critical(table.column("marks"))
    partitioner = open_partitioner(routing)
    placed = None
    if partitioner.is_whole:
        placed = _Placed(seqnos)
        placed.place(log, partitioner)
        reasons = {**placed.reasons(), **reasons}
    spans = _spans(seqnos, table.column("row_count").to_numpy(), byte_counts, reasons, limits, cuts)
    if placed is not None:
        rows = placed.rows_by_channel(spans, routing.channels)
    else:
        firsts = seqnos[[span.first for span in spans]]
        rows = _rows_by_channel(log, after_seqno, last_seqno, firsts, partitioner, routing.channels)
    cumulated = np.concatenate(([0], np.cumsum(byte_counts)))
    epochs = []
    for number, (span, row) in enumerate(zip(spans, rows, strict=True), start=first_number):
        epochs.append(
            Epoch(
                number=number,
                first_seqno=int(seqnos[span.first]),
                last_seqno=int(seqnos[span.last]),
                kind=span.kind,
                reason=span.reason,
                rows=tuple(int(count) for count in row),
                bytes_=_share(int(cumulated[span.last + 1] - cumulated[span.first]), row),
            )
        )
    return tuple(epochs)


def _critical(marks: pa.ChunkedArray) -> dict[int, Reason]:
    """Why, by index of transaction, for the critical ones."""
    marked = pc.indices_nonzero(pc.greater(pc.list_value_length(marks), 0))
    return {
        index: next(reason for mark, reason in _REASON_OF_MARK.items() if mark in names)
        for index, names in zip(marked.to_pylist(), marks.take(marked).to_pylist(), strict=True)
    }


def _spans(
    seqnos: npt.NDArray[np.int64],
    row_counts: npt.NDArray[np.int64],
    byte_counts: npt.NDArray[np.int64],
    critical: dict[int, Reason],
    limits: EpochLimits,
    cuts: Sequence[int],
) -> list[_Span]:
    rows_after, bytes_after = np.cumsum(row_counts), np.cumsum(byte_counts)
    stops = np.array(sorted(critical), dtype=np.int64)
    cut_ends = np.searchsorted(seqnos, np.array(sorted(cuts), dtype=np.int64), side="right")
    spans: list[_Span] = []
    at, end = 0, len(seqnos)
    while at < end:
        if at in critical:
            spans.append(_Span(at, at, EpochKind.SERIAL, critical[at]))
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
        ]
        stop, reason = min(candidates, key=lambda candidate: candidate[0])
        stop = max(stop, at + 1)
        spans.append(_Span(at, stop - 1, EpochKind.PARALLEL, reason))
        at = stop
    return spans


def _first_above(ordered: npt.NDArray[np.int64], at: int, end: int) -> int:
    index = int(np.searchsorted(ordered, at, side="right"))
    return int(ordered[index]) if index < len(ordered) else end


class _Placed:
    """Transactions as a whole partitioner places them: some arrays of one line a transaction."""

    def __init__(self, seqnos: npt.NDArray[np.int64]) -> None:
        self._seqnos = seqnos
        count = len(seqnos)
        self._rows = np.zeros(count, dtype=np.int64)
        self._channel = np.full(count, np.iinfo(np.int64).max, dtype=np.int64)
        """The least of its rows': UNKNOWN and CRITICAL are below all channels."""
        self._least_shard = np.full(count, np.iinfo(np.int64).max, dtype=np.int64)
        self._greatest_shard = np.full(count, np.iinfo(np.int64).min, dtype=np.int64)

    def place(self, log: LogReader, partitioner: Partitioner) -> None:
        relations = {relation.relation_id: relation for relation in log.state().relations}
        columns = list(dict.fromkeys(("seqno", *partitioner.columns)))
        for batch in log.rows(int(self._seqnos[0]) - 1, int(self._seqnos[-1]), columns=columns):
            found = partitioner.place(batch, relations)
            at = batch.column("seqno").to_numpy() - self._seqnos[0]
            np.add.at(self._rows, at, 1)
            np.minimum.at(self._channel, at, found.channels)
            if found.shards is not None:
                np.minimum.at(self._least_shard, at, found.shards)
                np.maximum.at(self._greatest_shard, at, found.shards)

    def reasons(self) -> dict[int, Reason]:
        """Why, by index of transaction, for those that no one channel can have."""
        several = np.flatnonzero(self._least_shard < self._greatest_shard).tolist()
        unknown = np.flatnonzero(self._channel == UNKNOWN).tolist()
        critical = np.flatnonzero(self._channel == CRITICAL).tolist()
        return {
            **dict.fromkeys(several, Reason.SHARDS),
            **dict.fromkeys(unknown, Reason.SHARD_UNKNOWN),
            **dict.fromkeys(critical, Reason.SHARD_CRITICAL),
        }

    def rows_by_channel(self, spans: Sequence[_Span], channels: int) -> npt.NDArray[np.int64]:
        """As `_rows_by_channel`; what runs alone is counted in some channel, since all of them wait for it."""
        counts = np.zeros((len(spans), channels), dtype=np.int64)
        epoch = np.repeat(np.arange(len(spans)), [span.last - span.first + 1 for span in spans])
        # A transaction without rows adds nothing anywhere.
        channel = np.where(self._rows > 0, np.maximum(self._channel, 0), 0)
        np.add.at(counts, (epoch, channel), self._rows)
        return counts


def _rows_by_channel(
    log: LogReader,
    after_seqno: int,
    last_seqno: int,
    firsts: npt.NDArray[np.int64],
    partitioner: Partitioner,
    channels: int,
) -> npt.NDArray[np.int64]:
    """Rows of every epoch (one a line) in every channel (one a column)."""
    counts = np.zeros((len(firsts), channels), dtype=np.int64)
    relations = {relation.relation_id: relation for relation in log.state().relations}
    columns = list(dict.fromkeys(("seqno", *partitioner.columns)))
    for batch in log.rows(after_seqno, last_seqno, columns=columns):
        epoch = np.searchsorted(firsts, batch.column("seqno").to_numpy(), side="right") - 1
        channel = partitioner.place(batch, relations).channels
        cells = np.bincount(epoch * channels + channel, minlength=counts.size)
        counts += cells.reshape(counts.shape)
    return counts


def _share(total: int, rows: npt.NDArray[np.int64]) -> tuple[int, ...]:
    """An epoch's bytes by channel, in proportion to its rows: enough to bound units, without reading the values."""
    whole = int(rows.sum())
    return tuple(int(total * int(count) // whole) if whole else 0 for count in rows)
