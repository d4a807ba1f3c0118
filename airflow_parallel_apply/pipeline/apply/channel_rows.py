"""Rows of channels in source order, for an exact replay of what a merge could not do."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.model.change import Operation
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.partition.open import open_partitioner
from airflow_parallel_apply.pipeline.partition.routing import Routing


def channel_rows(log: LogReader, unit: Unit, relation_ids: Collection[int] | None = None) -> Iterator[pa.RecordBatch]:
    """`ROWS` by (seqno, fragno), of some tables or of all: those of the unit's channel, or of all channels, each behind
    its own position. A key-changing update whose other half is not among them is, here, a deletion of the old key or an
    insertion of the new one. Memory: as the log's reader in order.
    """
    partitioner = open_partitioner(unit.routing or Routing(channels=unit.channels))
    relations = {relation.relation_id: relation for relation in log.state().relations}
    after = np.array([unit.after(channel) for channel in range(unit.channels)])
    wanted = None if relation_ids is None else pa.array(sorted(relation_ids), pa.int32())
    held: list[pa.RecordBatch] = []
    for batch in log.rows(unit.after_seqno, unit.last_seqno, in_order=True):
        found = batch if wanted is None else batch.filter(pc.is_in(batch.column("relation_id"), wanted))
        channel = partitioner.place(found, relations).channels
        ours = found.column("seqno").to_numpy() > after[channel]
        if unit.channel is not None:
            ours &= channel == unit.channel
        rows = pa.Table.from_batches([*held, found.filter(pa.array(ours))], schema=ROWS).combine_chunks()
        if not rows.num_rows:
            continue
        # The other half of a last KEY_LEFT comes with the next batch, if at all.
        whole = rows.num_rows - (rows.column("operation")[-1].as_py() == Operation.KEY_LEFT)
        held = rows.slice(whole).to_batches()
        yield from _halves_alone(rows.slice(0, whole))
    yield from _halves_alone(pa.Table.from_batches(held, schema=ROWS))


def _halves_alone(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    if not rows.num_rows:
        return
    operation = np.array(rows.column("operation").to_pylist())
    seqno, fragno = rows.column("seqno").to_numpy(), rows.column("fragno").to_numpy()
    left, arrived = operation == Operation.KEY_LEFT, operation == Operation.KEY_ARRIVED
    pair = left[:-1] & arrived[1:] & (seqno[:-1] == seqno[1:]) & (fragno[:-1] + 1 == fragno[1:])
    alone = np.ones(len(operation), dtype=np.bool_)
    alone[:-1] &= ~pair
    alone[1:] &= ~pair
    operation = np.where(left & alone, Operation.DELETE.value, operation)
    operation = np.where(arrived & alone, Operation.INSERT.value, operation)
    index = ROWS.get_field_index("operation")
    yield from rows.set_column(index, ROWS.field(index), pa.array(operation.tolist(), pa.string())).to_batches()
