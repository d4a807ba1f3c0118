"""The mark of a transaction: by which a history is told from another one with the same seqnos.

A log and its source may be restored to an earlier moment, and then other transactions get seqnos that a reader has seen
already. Where a transaction ends in its source, and when it was committed, tell them apart; and a transaction that is
the same has the same ones before it. So whoever holds rows keeps the mark of the last transaction that they are of.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from airflow_parallel_apply.pipeline.log.protocol import LogReader


@dataclass(frozen=True, slots=True)
class Mark:
    """`commit_time`: in microseconds since 1970."""

    end_offset: int
    commit_time: int


def mark_of(log: LogReader, seqno: int) -> Mark | None:
    """The mark of a transaction; None where the log does not have it. Errors: `LogError`, also where it was purged."""
    found = log.transactions(seqno - 1, seqno)
    if not found.num_rows:
        return None
    return Mark(found.column("end_offset")[0].as_py(), found.column("commit_time").cast(pa.int64())[0].as_py())
