"""Transactions in a batch of `pgoutput` messages: the one that is open, and those that end, as the log keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_parallel_apply.pipeline.log.schema import TRANSACTIONS
from airflow_parallel_apply.pipeline.model.change import Mark
from airflow_parallel_apply.pipeline.source.postgres.slot.resume import POSTGRES_EPOCH_MICROSECONDS
from airflow_parallel_apply.pipeline.source.postgres.wire.cells import Wire

Numbers = npt.NDArray[np.int64]

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
_LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)
"""The server knows times beyond these."""
_MICROSECOND: Final = timedelta(microseconds=1)

XID_AT: Final = 17
"""Kind, LSN and time before a begin's transaction id."""


@dataclass(slots=True, kw_only=True)
class OpenTransaction:
    """The transaction that a batch began and did not end, as far as it was read."""

    xid: int = 0
    commit_lsn: int = 0
    row_count: int = 0
    byte_count: int = 0
    marks: set[Mark] = field(default_factory=set)


def begun(wire: Wire, begin: int) -> tuple[int, int]:
    """Id and commit LSN of a transaction, by the message that begins it."""
    at = wire.starts[begin : begin + 1]
    return int(wire.numbers(at + XID_AT, ">u4")[0]), int(wire.numbers(at + 1, ">i8")[0])


def ended_transactions(
    wire: Wire,
    commits: Numbers,
    transaction: Numbers,
    *,
    seqnos: Numbers,
    xids: Numbers,
    totals: Numbers,
    byte_counts: Numbers,
    marks: Mapping[int, Set[Mark]],
    latest_time: datetime | None,
) -> pa.RecordBatch:
    """Those with rows, by their commits. `transaction`: each message's; the other arrays: each transaction's.

    The time of one under a replication origin is whatever its session said, and none behind it has an earlier one: what
    is to come would wait for it. So none is later than `latest_time`.
    """
    ended = transaction[commits]
    kept = totals[ended] > 0
    ended, at = ended[kept], wire.starts[commits][kept]
    earliest, latest = ((time - _EPOCH) // _MICROSECOND for time in (_EARLIEST, latest_time or _LATEST))
    times = np.clip(wire.numbers(at + 18, ">i8"), earliest, latest) + POSTGRES_EPOCH_MICROSECONDS
    return pa.RecordBatch.from_arrays(
        [
            pa.array(seqnos[ended]),
            pa.array(xids[ended]),
            pa.array(wire.numbers(at + 2, ">i8")),
            pa.array(end_lsn(wire, at)),
            pa.array(times).cast(pa.timestamp("us", tz="UTC")),
            pa.array(totals[ended]),
            pa.array(byte_counts[ended]),
            _mark_lists(ended, marks),
        ],
        schema=TRANSACTIONS,
    )


def end_lsn(wire: Wire, commits_at: Numbers) -> Numbers:
    """The ends of commits, from the places where their messages begin."""
    return wire.numbers(commits_at + 10, ">i8")


def _mark_lists(transactions: Numbers, marks: Mapping[int, Set[Mark]]) -> pa.ListArray:
    """The marks of each transaction. Nearly all have none."""
    lengths = np.zeros(len(transactions), dtype=np.int64)
    words: list[str] = []
    for index in sorted(marks):
        at = np.searchsorted(transactions, index)
        if at < len(transactions) and transactions[at] == index:
            lengths[at] = len(marks[index])
            words += sorted(marks[index])
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(words, pa.string()))
