"""The Arrow schemas of a segment: its rows and its transactions.

Kept apart from `event`, which must stay importable without pyarrow.

Rows (file `<name>.rows.parquet`), clustered by bucket range into row groups, inside a row group in
(seqno, fragno) order:

| column | meaning |
|---|---|
| seqno, fragno | transaction, and the change's number in it; both halves of a key change share the seqno |
| relation_id | version of the table's definition, see `Relation`; -1 for a MESSAGE |
| operation | one letter, see `Operation` |
| bucket | 0 … BUCKET_COUNT-1, a pure function of the canonical key (law 1); of (seqno, fragno) for tables without a key, of the table where all values stand for it |
| key | canonical text of the key; null for tables without one and for statements |
| key_order | 64-bit order-preserving prefix of the key: sorts about as the target's index does, never decides equality |
| previous_seqno | the seqno of the change before this one on the same key in this segment, NO_SEQNO if none |
| next_seqno | likewise of the change after it, LAST_SEQNO if none |
| values | the source's text of every column, in the relation's order, as one line (`model.copy_text`). DELETE and KEY_LEFT: key columns only, others NULL (all, where a table is a multiset of rows). TRUNCATE: "cascade" and "restart_identity" where given. MESSAGE: prefix, content |
| unsent | one character a column, "1" where the value was not sent (unchanged TOAST): keep the old row's; null when all were |
| old_key | KEY_ARRIVED only: a line of the old key's columns, in key order; of a multiset the old row |

The two links let a reader drop, by a pushed-down filter, what a unit (a, b] does not need: of all changes of one
key only the first (previous_seqno <= a) tells whether the row existed, and only the last (next_seqno > b) its
values. A key any of whose changes in the segment has `unsent` columns gets no links (NO_SEQNO, LAST_SEQNO), since
then the middle matters; nor does the old key of a key change with `unsent` columns. Of several changes of one key inside one transaction the links are equal to that seqno, so
a row may be superseded by its own transaction: next_seqno == seqno. They say nothing about a part of a transaction:
who takes a window of fragnos may not filter by them.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

ROWS: Final = pa.schema(
    [
        pa.field("seqno", pa.int64(), nullable=False),
        pa.field("fragno", pa.int64(), nullable=False),
        pa.field("relation_id", pa.int32(), nullable=False),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("bucket", pa.int32(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("key_order", pa.int64(), nullable=False),
        pa.field("previous_seqno", pa.int64(), nullable=False),
        pa.field("next_seqno", pa.int64(), nullable=False),
        pa.field("values", pa.string(), nullable=False),
        pa.field("unsent", pa.string()),
        pa.field("old_key", pa.string()),
    ]
)

WIDTH: Final = "width"
"""A column that files have behind those of `ROWS`, null where an older version wrote them: bytes of the row's values. So
a planner knows what channels have to move without reading the values.
"""

STORED: Final = ROWS.append(pa.field(WIDTH, pa.int32()))

TRANSACTIONS: Final = pa.schema(
    [
        pa.field("seqno", pa.int64(), nullable=False),
        pa.field("xid", pa.int64(), nullable=False),
        pa.field("commit_offset", pa.int64(), nullable=False),
        pa.field("end_offset", pa.int64(), nullable=False),
        pa.field("commit_time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("row_count", pa.int64(), nullable=False),
        pa.field("byte_count", pa.int64(), nullable=False),
        pa.field("marks", pa.list_(pa.string()), nullable=False),
    ]
)
