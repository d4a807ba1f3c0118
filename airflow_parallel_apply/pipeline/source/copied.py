"""The rows that a first run finds, as the log's first transactions: `copied_part`, for every source.

Each transaction is some rows of one table. It was none at the source: its offset is the snapshot's, and so is its time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_parallel_apply.pipeline.log.schema import TRANSACTIONS
from airflow_parallel_apply.pipeline.model.change import Mark, Operation, Relation
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.source.cells import Cells
from airflow_parallel_apply.pipeline.source.protocol import CopiedPart
from airflow_parallel_apply.pipeline.source.rows import Changes, RowBuilder

NO_XID: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedAt:
    """The moment of a copy: the snapshot's offset, and the source's clock then."""

    offset: Offset
    time: datetime


def copied_part(
    relation: Relation, cells: Cells, row_count: int, *, seqno: int, at: CopiedAt, tables: int, fraction: float
) -> CopiedPart:
    """One transaction of rows of a table. `cells`: row by row, in the order of the relation's columns."""
    width = len(relation.columns)
    changes = Changes(
        relation=relation,
        operation=Operation.INSERT,
        messages=np.arange(row_count, dtype=np.int64),
        new=np.arange(row_count * width, dtype=np.int64).reshape(row_count, width),
    )
    seqnos = np.full(row_count, seqno, dtype=np.int64)
    rows, row_bytes, _ = RowBuilder(cells, row_count, [changes]).build(seqnos, np.arange(row_count, dtype=np.int64))
    return CopiedPart(
        rows=rows,
        transactions=pa.RecordBatch.from_pylist(
            [
                {
                    "seqno": seqno,
                    "xid": NO_XID,
                    "commit_offset": at.offset,
                    "end_offset": at.offset,
                    "commit_time": at.time,
                    "row_count": row_count,
                    "byte_count": int(row_bytes.sum()),
                    "marks": [Mark.COPY.value],
                }
            ],
            schema=TRANSACTIONS,
        ),
        tables=tables,
        fraction=fraction,
    )
