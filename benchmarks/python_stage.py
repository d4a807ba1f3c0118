"""A stage for comparison only: one Spark task that runs Python, which reads the log by itself.

Spark neither scans nor filters nor sorts here. What this saves against `SparkStage` is the price of doing it in Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.epoch import Branch, StagedUnit, Unit
from airflow_parallel_apply.pipeline.partition.channel import bucket_range
from airflow_parallel_apply.pipeline.target.open import target_connector
from airflow_parallel_apply.spark.schemas import LOADED_SCHEMA, RESULT_SCHEMA
from airflow_parallel_apply.spark.session import ConnectAccess, close_session
from airflow_parallel_apply.spark.worker import LoadRows, read_results

_COLUMNS = [*LOADED_SCHEMA.names, "fragno", "bucket", "key_order"]
_BATCH_ROWS = 65_536


class PythonStage:
    """Implements `Stage`."""

    def __init__(self, *, access: ConnectAccess, config: PipelineConfig, target: Endpoint) -> None:
        self._session = access.open()
        self._log = open_reader(config.log_url)
        self._target = target

    def stage(self, unit: Unit) -> StagedUnit:
        began = time.monotonic()
        if not isinstance(unit.kind, Branch):
            raise LogError("a serial unit in a history that has none", op="stage")
        read = _ReadAndLoad(
            files=self._log.row_files(unit.after_seqno, unit.last_seqno),
            after_seqno=unit.after_seqno,
            last_seqno=unit.last_seqno,
            buckets=bucket_range(unit.kind.channel, unit.channels),
            load=LoadRows(
                loader=target_connector(self._target).loader(self._target, unit, self._log.state().relations),
                nonce=uuid4().hex,
            ),
        )
        found = self._session.range(0, 1, 1, 1).mapInArrow(read, RESULT_SCHEMA).toArrow()
        tables = read_results(found)
        return StagedUnit(unit=unit, tables=tables, row_count=unit.row_count, seconds=time.monotonic() - began)

    def cancel(self) -> None:
        """A benchmark is not cancelled."""

    def close(self) -> None:
        close_session(self._session)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadAndLoad:
    files: tuple[str, ...]
    after_seqno: int
    last_seqno: int
    buckets: tuple[int, int]
    load: LoadRows = field(repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        rows = pa.concat_tables([table for file in self.files for table in self._read(file)]).combine_chunks()
        order = np.lexsort([rows.column(name).to_numpy() for name in ("fragno", "seqno", "key_order", "relation_id")])
        rows = rows.take(pa.array(_keys_together(rows, order))).select(list(LOADED_SCHEMA.names))
        yield from self.load(iter(rows.to_batches(max_chunksize=_BATCH_ROWS)))

    def _read(self, path: str) -> Iterator[pa.Table]:
        first, last = self.buckets
        wanted: Any = (
            (pc.field("seqno") > self.after_seqno)
            & (pc.field("seqno") <= self.last_seqno)
            & (pc.field("bucket") >= first)
            & (pc.field("bucket") <= last)
            & ((pc.field("previous_seqno") <= self.after_seqno) | (pc.field("next_seqno") > self.last_seqno))
        )
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                names = file.schema_arrow.names
                buckets = group.column(names.index("bucket")).statistics
                seqnos = group.column(names.index("seqno")).statistics
                if buckets.max < first or buckets.min > last:
                    continue
                if seqnos.max <= self.after_seqno or seqnos.min > self.last_seqno:
                    continue
                yield file.read_row_group(number, columns=_COLUMNS).filter(wanted)


def _keys_together(rows: pa.Table, order: Any) -> Any:
    """Sort by key only where several share an order: most tables' keys never do."""
    sorted_rows = rows.select(["relation_id", "key_order", "key"]).take(pa.array(order))
    same = pc.and_(
        pc.equal(
            sorted_rows.column("relation_id").slice(1), sorted_rows.column("relation_id").slice(0, len(order) - 1)
        ),
        pc.equal(sorted_rows.column("key_order").slice(1), sorted_rows.column("key_order").slice(0, len(order) - 1)),
    )
    unlike = pc.not_equal(sorted_rows.column("key").slice(1), sorted_rows.column("key").slice(0, len(order) - 1))
    if not pc.any(pc.and_(same, pc.fill_null(unlike, False))).as_py():
        return order
    names = ("relation_id", "key_order", "key", "seqno", "fragno")
    return pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names])
