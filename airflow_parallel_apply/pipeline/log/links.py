"""The two links of a row: the seqnos of the changes before and after it on the same key, in the same segment.

Exact: keys are compared, not their hashes (Arrow's dictionary encoding does that). Without links, which means
(NO_SEQNO, LAST_SEQNO): rows without a key, statements, and every row of a key whose changes in the segment do not
each carry all values. Such are the keys with `unsent` columns, and also the *old* key of a key change with `unsent`
columns, since the missing values must be found in the middle of its history.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.model.change import LAST_SEQNO, NO_SEQNO, Operation

Int64s = npt.NDArray[np.int64]


def link(rows: pa.Table) -> tuple[Int64s, Int64s]:
    """(previous_seqno, next_seqno) of rows that are in (seqno, fragno) order; about 0.15 µs a row."""
    count = rows.num_rows
    seqno = rows.column("seqno").to_numpy()
    previous = np.full(count, NO_SEQNO, dtype=np.int64)
    following = np.full(count, LAST_SEQNO, dtype=np.int64)
    keyed = np.flatnonzero(pc.is_valid(rows.column("key")).to_numpy())
    if not len(keyed):
        return previous, following

    identity = _identities(rows)
    # One sort of (identity, row number) packed in a word puts each key's changes beside each other, in order.
    bits = count.bit_length()
    packed = np.sort((identity[keyed] << bits) | keyed)
    row = packed & ((1 << bits) - 1)
    of = packed >> bits
    same = of[1:] == of[:-1]
    middle_matters = _rows_whose_key_needs_every_change(rows)
    if len(middle_matters):
        same &= ~np.isin(of[1:], identity[middle_matters])
    before, after = row[:-1][same], row[1:][same]
    previous[after] = seqno[before]
    following[before] = seqno[after]
    return previous, following


def _identities(rows: pa.Table) -> Int64s:
    """A number per row, equal exactly where relation and key are equal; any number where the key is null."""
    keys, key_count = _codes(rows.column("key"))
    relations, relation_count = _codes(rows.column("relation_id"))
    identity = relations * key_count + keys
    if (relation_count * key_count).bit_length() + rows.num_rows.bit_length() > 62:
        identity = np.unique(identity, return_inverse=True)[1].astype(np.int64)
    return identity


def _codes(column: pa.ChunkedArray) -> tuple[Int64s, int]:
    encoded = column.combine_chunks().dictionary_encode()
    codes = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, max(1, len(encoded.dictionary))


def _rows_whose_key_needs_every_change(rows: pa.Table) -> npt.NDArray[np.intp]:
    unsent = np.flatnonzero(pc.is_valid(rows.column("unsent")).to_numpy())
    if not len(unsent):
        return unsent
    operations = rows.column("operation").take(pa.array(unsent))
    arrived = unsent[pc.equal(operations, Operation.KEY_ARRIVED.value).to_numpy()]
    left = arrived[arrived > 0] - 1
    return np.concatenate([unsent, left])
