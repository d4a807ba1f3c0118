"""The planner: log in, epochs out. The only place that decides where an epoch ends and what is critical.

Shape:   transactions (after_seqno, last_seqno] of a log → epochs, contiguous, in order, every transaction in one.
Units:   see `spans`, where epochs end.
Errors:  `LogError` from the log.
Source:  Tungsten's partitioner pass over the log, which marks serialization points before anyone reads past them.

It loops over epochs, never over transactions or rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.log.schema import WIDTH
from airflow_parallel_apply.pipeline.model.change import Mark, Operation
from airflow_parallel_apply.pipeline.model.epoch import Epoch, Reason
from airflow_parallel_apply.pipeline.partition.open import open_partitioner
from airflow_parallel_apply.pipeline.partition.protocol import CRITICAL, UNKNOWN, Partitioner
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.plan.spans import EpochLimits, Span, Transactions, cut_spans

Numbers = npt.NDArray[np.int64]

_REASON_OF_MARK = {
    Mark.MESSAGE: Reason.DDL,
    Mark.TRUNCATE: Reason.TRUNCATE,
    Mark.RELATION: Reason.RELATION,
    Mark.KEY_UNSENT: Reason.KEY_UNSENT,
}
"""In order of telling: a transaction with several marks names the first of them. Other marks make none critical."""


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
    partitioner = open_partitioner(routing)
    transactions, placed, ends = _transactions(log, after_seqno, last_seqno, partitioner)
    spans = cut_spans(transactions, limits, cuts)
    seqnos, byte_counts = transactions.seqnos, transactions.byte_counts
    if placed is not None:
        loads = placed.by_channel(spans, byte_counts, routing.channels)
    else:
        firsts = seqnos[[span.first for span in spans]]
        loads = _by_channel(log, after_seqno, last_seqno, firsts, partitioner, routing.channels)
    cumulated = np.concatenate(([0], np.cumsum(byte_counts)))
    epochs = []
    for index, span in enumerate(spans):
        epochs.append(
            Epoch(
                number=first_number + index,
                first_seqno=int(seqnos[span.first]),
                last_seqno=int(seqnos[span.last]),
                kind=span.kind,
                reason=span.reason,
                rows=tuple(loads.rows[index].tolist()),
                bytes_=loads.sizes(index, int(cumulated[span.last + 1] - cumulated[span.first])),
                end_offset=int(ends.offsets[span.last]),
                inserts=tuple(loads.inserts[index].tolist()),
                end_time=ends.times[span.last].as_py(),
            )
        )
    return tuple(epochs)


def critical_reasons(log: LogReader, *, after_seqno: int, last_seqno: int, routing: Routing) -> dict[Reason, int]:
    """The number of critical transactions by reason, whatever epochs they are in."""
    if last_seqno <= after_seqno:
        return {}
    transactions, _, _ = _transactions(log, after_seqno, last_seqno, open_partitioner(routing))
    return dict(Counter(transactions.critical.values()))


def _transactions(
    log: LogReader, after_seqno: int, last_seqno: int, partitioner: Partitioner
) -> tuple[Transactions, _Placed | None, _Ends]:
    table = log.transactions(after_seqno, last_seqno)
    seqnos = table.column("seqno").to_numpy()
    critical = _critical(table.column("marks"))
    placed = None
    if partitioner.is_whole:
        placed = _Placed(seqnos)
        placed.place(log, partitioner)
        critical = {**placed.reasons(), **critical}
    found = Transactions(
        seqnos=seqnos,
        row_counts=table.column("row_count").to_numpy(),
        byte_counts=table.column("byte_count").to_numpy(),
        # With one barrier at most, no two of them are near each other.
        image_counts=_image_counts(log, seqnos) if len(critical) > 1 else np.zeros(len(seqnos), dtype=np.int64),
        commit_times=table.column("commit_time").cast(pa.int64()).to_numpy(),
        critical=critical,
    )
    return found, placed, _Ends(table.column("end_offset").to_numpy(), table.column("commit_time"))


def _image_counts(log: LogReader, seqnos: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """By transaction, the updates and deletes in tables without a key."""
    counts = np.zeros(len(seqnos), dtype=np.int64)
    numbers = [relation.relation_id for relation in log.state().relations if relation.by_image]
    if not numbers:
        return counts
    columns = ["seqno", "relation_id", "operation"]
    for batch in log.rows(int(seqnos[0]) - 1, int(seqnos[-1]), columns=columns):
        by_image = pc.is_in(batch.column("relation_id"), pa.array(numbers, batch.column("relation_id").type))
        found = batch.filter(pc.and_(by_image, pc.not_equal(batch.column("operation"), Operation.INSERT)))
        np.add.at(counts, found.column("seqno").to_numpy() - seqnos[0], 1)
    return counts


def _critical(marks: pa.ChunkedArray) -> dict[int, Reason]:
    """The reasons of critical transactions, by index of transaction."""
    marked = pc.indices_nonzero(pc.greater(pc.list_value_length(marks), 0))
    found = {}
    for index, names in zip(marked.to_pylist(), marks.take(marked).to_pylist(), strict=True):
        reasons = [reason for mark, reason in _REASON_OF_MARK.items() if mark in names]
        if reasons:
            found[index] = reasons[0]
    return found


@dataclass(frozen=True, slots=True)
class _Ends:
    """Where the transactions end, by index: in the source's stream, and in time."""

    offsets: Numbers
    times: pa.ChunkedArray


@dataclass(frozen=True, slots=True)
class _Loads:
    """The load that every epoch (one a line) brings every channel (one a column). `unweighed`: rows whose size `bytes_`
    does not contain, in files of an older version.
    """

    rows: Numbers
    bytes_: Numbers
    unweighed: Numbers
    inserts: Numbers

    def sizes(self, epoch: int, total: int) -> tuple[int, ...]:
        """Bytes by channel; what is left of the epoch's total is shared in proportion to the rows without a width."""
        count = int(self.unweighed[epoch].sum())
        left = max(total - int(self.bytes_[epoch].sum()), 0) if count else 0
        shares = (left * int(rows) // count if count else 0 for rows in self.unweighed[epoch])
        return tuple(int(known) + share for known, share in zip(self.bytes_[epoch], shares, strict=True))


class _Placed:
    """Transactions as a whole partitioner places them: some arrays of one line a transaction."""

    def __init__(self, seqnos: npt.NDArray[np.int64]) -> None:
        self._seqnos = seqnos
        count = len(seqnos)
        self._rows = np.zeros(count, dtype=np.int64)
        self._inserts = np.zeros(count, dtype=np.int64)
        self._channel = np.full(count, np.iinfo(np.int64).max, dtype=np.int64)
        """The least of its rows': UNKNOWN and CRITICAL are below all channels."""
        self._least_shard = np.full(count, np.iinfo(np.int64).max, dtype=np.int64)
        self._greatest_shard = np.full(count, np.iinfo(np.int64).min, dtype=np.int64)

    def place(self, log: LogReader, partitioner: Partitioner) -> None:
        relations = {relation.relation_id: relation for relation in log.state().relations}
        columns = list(dict.fromkeys(("seqno", "operation", *partitioner.columns)))
        for batch in log.rows(int(self._seqnos[0]) - 1, int(self._seqnos[-1]), columns=columns):
            found = partitioner.place(batch, relations)
            at = batch.column("seqno").to_numpy() - self._seqnos[0]
            np.add.at(self._rows, at, 1)
            np.add.at(self._inserts, at, _is_insertion(batch))
            np.minimum.at(self._channel, at, found.channels)
            if found.shards is not None:
                np.minimum.at(self._least_shard, at, found.shards)
                np.maximum.at(self._greatest_shard, at, found.shards)

    def reasons(self) -> dict[int, Reason]:
        """The reasons of transactions that no one channel can have, by index of transaction."""
        several = np.flatnonzero(self._least_shard < self._greatest_shard).tolist()
        unknown = np.flatnonzero(self._channel == UNKNOWN).tolist()
        critical = np.flatnonzero(self._channel == CRITICAL).tolist()
        return {
            **dict.fromkeys(several, Reason.SHARDS),
            **dict.fromkeys(unknown, Reason.SHARD_UNKNOWN),
            **dict.fromkeys(critical, Reason.SHARD_CRITICAL),
        }

    def by_channel(self, spans: Sequence[Span], byte_counts: Numbers, channels: int) -> _Loads:
        """As `_by_channel`; what runs alone is counted in some channel, since all of them wait for it."""
        counts, sizes, inserts = (np.zeros((len(spans), channels), dtype=np.int64) for _ in range(3))
        epoch = np.repeat(np.arange(len(spans)), [span.last - span.first + 1 for span in spans])
        # A transaction without rows adds nothing anywhere.
        channel = np.where(self._rows > 0, np.maximum(self._channel, 0), 0)
        np.add.at(counts, (epoch, channel), self._rows)
        np.add.at(sizes, (epoch, channel), byte_counts)
        np.add.at(inserts, (epoch, channel), self._inserts)
        return _Loads(counts, sizes, np.zeros_like(counts), inserts)


def _by_channel(
    log: LogReader,
    after_seqno: int,
    last_seqno: int,
    firsts: Numbers,
    partitioner: Partitioner,
    channels: int,
) -> _Loads:
    found = _Loads(*(np.zeros((len(firsts), channels), dtype=np.int64) for _ in range(4)))
    relations = {relation.relation_id: relation for relation in log.state().relations}
    columns = list(dict.fromkeys(("seqno", "operation", WIDTH, *partitioner.columns)))
    for batch in log.rows(after_seqno, last_seqno, columns=columns):
        epoch = np.searchsorted(firsts, batch.column("seqno").to_numpy(), side="right") - 1
        channel = partitioner.place(batch, relations).channels
        cells = epoch * channels + channel
        width = batch.column(WIDTH)
        weights = pc.fill_null(width, 0).to_numpy(zero_copy_only=False)
        for sums, weight in (
            (found.rows, None),
            (found.bytes_, weights),
            (found.unweighed, width.is_null().to_numpy(zero_copy_only=False)),
            (found.inserts, _is_insertion(batch)),
        ):
            added = np.bincount(cells, weight, minlength=sums.size).astype(np.int64)
            np.add(sums, added.reshape(sums.shape), out=sums)
    return found


def _is_insertion(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """By row."""
    found = pc.equal(batch.column("operation"), Operation.INSERT)
    return pc.fill_null(found, False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
