"""Rows in source order, for an exact replay of what a merge could not do: one channel's, or colocated tables' ones."""

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


def channel_rows(log: LogReader, unit: Unit) -> Iterator[pa.RecordBatch]:
    """`ROWS` by (seqno, fragno). A key-changing update whose other half lies in another channel is, here, a deletion of
    the old key or an insertion of the new one. Memory: as the log's reader in order.
    """
    partitioner = open_partitioner(unit.routing or Routing(channels=unit.channels))
    relations = {relation.relation_id: relation for relation in log.state().relations}
    held: list[pa.RecordBatch] = []
    for batch in log.rows(unit.after_seqno, unit.last_seqno, in_order=True):
        mine = batch.filter(pa.array(partitioner.place(batch, relations).channels == unit.channel))
        rows = pa.Table.from_batches([*held, mine], schema=ROWS).combine_chunks()
        if not rows.num_rows:
            continue
        # The other half of a last KEY_LEFT comes with the next batch, if at all.
        whole = rows.num_rows - (rows.column("operation")[-1].as_py() == Operation.KEY_LEFT)
        held = rows.slice(whole).to_batches()
        yield from _halves_alone(rows.slice(0, whole))
    yield from _halves_alone(pa.Table.from_batches(held, schema=ROWS))


def colocated_rows(log: LogReader, unit: Unit, relation_ids: Collection[int]) -> Iterator[pa.RecordBatch]:
    """The `ROWS` of a merge point, by (seqno, fragno), of tables that each lie in one channel, behind its position."""
    partitioner = open_partitioner(unit.routing or Routing(channels=unit.channels))
    relations = {relation.relation_id: relation for relation in log.state().relations}
    after = np.array([unit.after(channel) for channel in range(unit.channels)])
    wanted = pa.array(sorted(relation_ids), pa.int32())
    for batch in log.rows(unit.after_seqno, unit.last_seqno, in_order=True):
        colocated = batch.filter(pc.is_in(batch.column("relation_id"), wanted))
        channel = partitioner.place(colocated, relations).channels
        rows = colocated.filter(pa.array(colocated.column("seqno").to_numpy() > after[channel]))
        if rows.num_rows:
            yield rows


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
