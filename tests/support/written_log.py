"""A log written by hand, for rooms behind capture: one table `t (id integer PRIMARY KEY, v text)` and its truncates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from airflow_parallel_apply.pipeline.log.protocol import LogIdentity
from airflow_parallel_apply.pipeline.log.schema import ROWS, TRANSACTIONS
from airflow_parallel_apply.pipeline.log.writing import create_log, open_writer
from airflow_parallel_apply.pipeline.model.change import Column, Mark, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.copy_text import line
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.value_type import ValueType
from airflow_parallel_apply.pipeline.partition.key import buckets

T = Relation(
    relation_id=0,
    schema="public",
    table="t",
    replica_identity=ReplicaIdentity.KEY,
    columns=(
        Column(name="id", type_name="integer", kind=KeyKind.INTEGER, key=True, value=ValueType.parse("integer 32")),
        Column(name="v", type_name="text", value=ValueType.parse("text")),
    ),
)
TABLE = "CREATE TABLE t (id integer PRIMARY KEY, v text)"

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Change:
    """`operation` I, U, D or T; the last has neither id nor value."""

    operation: str
    id: int = 0
    v: str | None = None


def make_log(url: str) -> None:
    create_log(
        url,
        LogIdentity(
            log_id="log",
            server="0",
            database="d",
            stream="s",
            selection="p",
            bucket_count=1024,
            created=_NOW,
        ),
    )


@dataclass(frozen=True)
class Committed:
    """A transaction as a source gives it: where its commit begins and ends."""

    xid: int
    offset: int
    end_offset: int
    changes: Sequence[Change]
    time: datetime = _NOW
    is_copied: bool = False


def append(
    url: str,
    first_seqno: int,
    transactions: Sequence[Sequence[Change]],
    *,
    times: Sequence[datetime] | None = None,
) -> int:
    """Append and commit; the last seqno. `times`: when each transaction committed."""
    writer = open_writer(url)
    relation_id, _ = writer.relation_id(T)
    committed = [
        Committed(
            xid=seqno + 1000,
            offset=seqno * 10 + 5,
            end_offset=seqno * 10 + 9,
            changes=changes,
            time=times[number] if times else _NOW,
        )
        for number, (seqno, changes) in enumerate(enumerate(transactions, first_seqno))
    ]
    writer.append(*batches(committed, first_seqno=first_seqno, relation_id=relation_id))
    writer.commit(committed[-1].end_offset)
    return first_seqno + len(transactions) - 1


def batches(
    transactions: Sequence[Committed], *, first_seqno: int, relation_id: int
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The rows of whole transactions of `T`, and the transactions, as a log's writer takes them."""
    rows: dict[str, list[object]] = {name: [] for name in ROWS.names}
    for seqno, committed in enumerate(transactions, first_seqno):
        for fragno, change in enumerate(committed.changes):
            statement = change.operation == "T"
            values = [] if statement else [str(change.id), None if change.operation == "D" else change.v]
            row = {
                "seqno": seqno,
                "fragno": fragno,
                "relation_id": relation_id,
                "operation": change.operation,
                "bucket": 0 if statement else int(buckets("public.t", pa.array([str(change.id)]))[0]),
                "key": None if statement else str(change.id),
                "key_order": change.id,
                "previous_seqno": 0,
                "next_seqno": 0,
                "values": line(values),
                "unsent": None,
                "old_key": None,
            }
            for name, value in row.items():
                rows[name].append(value)
    counts = [len(committed.changes) for committed in transactions]
    ended = pa.record_batch(
        {
            "seqno": np.arange(first_seqno, first_seqno + len(transactions)),
            "xid": [committed.xid for committed in transactions],
            "commit_offset": [committed.offset for committed in transactions],
            "end_offset": [committed.end_offset for committed in transactions],
            "commit_time": pa.array(
                [committed.time for committed in transactions], TRANSACTIONS.field("commit_time").type
            ),
            "row_count": pa.array(counts, pa.int64()),
            "byte_count": pa.array([count * 10 for count in counts], pa.int64()),
            "marks": pa.array([_marks(committed) for committed in transactions], pa.list_(pa.string())),
        },
        schema=TRANSACTIONS,
    )
    return pa.record_batch(rows, schema=ROWS), ended


def _marks(committed: Committed) -> list[Mark]:
    if committed.is_copied:
        return [Mark.COPY]
    return [Mark.TRUNCATE] if any(change.operation == "T" for change in committed.changes) else []
