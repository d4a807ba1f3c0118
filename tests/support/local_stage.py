"""Staging without Spark, for tests of what lies around it: the same loader, fed by this process."""

from __future__ import annotations

import threading
from itertools import count
from typing import ClassVar, Final

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.errors import LogError, OwnershipLost, ParallelApplyError, RetryableError
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.model.epoch import Serial, StagedTable, StagedUnit, Unit
from airflow_parallel_apply.pipeline.open import POSTGRESQL
from airflow_parallel_apply.pipeline.packed_error import pack, unpack
from airflow_parallel_apply.pipeline.partition.open import open_partitioner
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.store.log import LogStore
from airflow_parallel_apply.pipeline.store.open import open_store
from airflow_parallel_apply.pipeline.store.protocol import ALL_ROWS, StreamBranch
from airflow_parallel_apply.pipeline.target.loading import LoadTask
from airflow_parallel_apply.pipeline.target.open import target_connector
from airflow_parallel_apply.pipeline.target.postgres.naming import holder_session
from tests.support.memory_router import streamed

_CANCEL_AGAIN_SECONDS: Final = 0.05
_attempts = count()


class LocalStage:
    """Implements `Stage`: reads the unit's rows, filters as Spark does, sorts, loads. `config`: of a pipeline whose
    store is read; None: the log is.
    """

    ROWS_AT_ONCE: ClassVar[int] = 1000

    def __init__(self, log_url: str, target: Endpoint, *, config: PipelineConfig | None = None) -> None:
        self.served: list[bool] = []
        """One entry for each unit of one channel: True if the store had it, and not only the log."""
        self._log = open_reader(log_url)
        self._store = LogStore(self._log) if config is None else open_store(config, self._log)
        self._target = target
        self._changed = threading.Condition()
        self._running: dict[int, Unit] = {}
        self._doomed: set[int] = set()

    def stage(self, unit: Unit) -> StagedUnit:
        number = next(_attempts)
        with self._changed:
            self._running[number] = unit
        try:
            return self.attempt(unit, job=f"local{number}", attempt=f"local{number}")
        except ParallelApplyError as error:
            if number in self._doomed:
                raise OwnershipLost("staging was cancelled", op="stage") from error
            # As from a worker.
            raise unpack(pack(error)).at(pipeline=unit.pipeline, channel=unit.channel) from error
        finally:
            with self._changed:
                del self._running[number]
                self._doomed.discard(number)
                self._changed.notify_all()

    def cancel(self) -> None:
        """Ends the sessions of what is being staged, where the target has sessions, until it is no more."""
        with self._changed:
            doomed = dict(self._running)
            self._doomed.update(doomed)
        names = [
            holder_session(one.pipeline, one.channel, one.token, group=one.group, prepares=one.prepares)
            for one in doomed.values()
        ]
        while doomed.keys() & self._running.keys():
            if self._target.scheme == POSTGRESQL:
                with psycopg.connect(self._target.url, autocommit=True) as connection:
                    connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = ANY (%s)",
                        [names],
                    )
            with self._changed:
                self._changed.wait_for(lambda: not doomed.keys() & self._running.keys(), _CANCEL_AGAIN_SECONDS)

    def attempt(self, unit: Unit, *, job: str, attempt: str) -> StagedUnit:
        """Stage, or prepare, as one attempt of each task of a job does."""
        branch = self._store.branch(unit)
        rows: pa.Table | None = None
        if isinstance(branch, StreamBranch):
            try:
                rows = pa.Table.from_batches(streamed(branch), schema=ROWS)
            except (LogError, RetryableError):
                # As the stage on Spark does it.
                self._store.doubt(unit)
                branch = self._store.branch(unit)
        is_held = branch.condition == ALL_ROWS
        if unit.channel is not None:
            self.served.append(is_held)
        if isinstance(branch, StreamBranch):
            rows = pa.Table.from_batches(streamed(branch), schema=ROWS) if rows is None else rows
        elif is_held:
            wanted = (pc.field("seqno") > unit.after_seqno) & (pc.field("seqno") <= unit.last_seqno)
            rows = pq.read_table(list(branch.files), filters=wanted).cast(ROWS)
        else:
            batches = list(self._log.rows(unit.after_seqno, unit.last_seqno))
            rows = pa.Table.from_batches(batches, schema=ROWS)
        rows = rows.filter(pc.is_in(rows.column("operation"), pa.array(["I", "U", "D", "K", "X"])))
        channel = self._channels(rows, unit)
        # By row: the seqno that its channel has committed before the unit.
        after = np.array([unit.after(number) for number in range(unit.channels)])[np.maximum(channel, 0)]
        wanted = rows.column("seqno").to_numpy() > after
        if unit.channel is not None:
            wanted &= channel == unit.channel
        rows, after = rows.filter(pa.array(wanted)), after[wanted]
        if isinstance(unit.kind, Serial) and unit.kind.first_fragno is not None:
            rows = rows.filter(pc.greater_equal(rows.column("fragno"), unit.kind.first_fragno))
        if isinstance(unit.kind, Serial) and unit.kind.last_fragno is not None:
            rows = rows.filter(pc.less_equal(rows.column("fragno"), unit.kind.last_fragno))
        if rows.num_rows != unit.row_count:
            raise LogError(f"found {rows.num_rows} rows where the plan has {unit.row_count}", seqno=unit.last_seqno)
        connector = target_connector(self._target)
        takes_changes = connector.takes_changes(self._target)
        if not (takes_changes or isinstance(unit.kind, Serial)):
            before = pc.less_equal(rows.column("previous_seqno"), pa.array(after))
            rows = rows.filter(pc.or_(before, pc.greater(rows.column("next_seqno"), unit.last_seqno)))
        if branch.unordered:
            doubtful = pc.is_in(rows.column("relation_id"), pa.array(branch.unordered, pa.int32()))
            place = rows.schema.get_field_index("key_order")
            rows = rows.set_column(place, "key_order", pc.if_else(doubtful, 0, rows.column("key_order")))
        order = ["seqno", "fragno"] if takes_changes else ["key_order", "relation_id", "key", "seqno", "fragno"]
        rows = rows.sort_by([(name, "ascending") for name in order])
        times = CommitTimes.of_log(self._log, unit.after_seqno, unit.last_seqno) if takes_changes else None
        loader = connector.loader(self._target, unit, self._log.state().relations, commit_times=times)
        tables: list[StagedTable] = []
        for number, part in enumerate(self._parts(rows, unit)):
            batches = part.to_batches(max_chunksize=self.ROWS_AT_ONCE)
            task = LoadTask(job=job, number=number)
            tables += loader.load(batches, f"{attempt}:{number}", task=task).tables
        return StagedUnit(unit=unit, tables=tuple(tables), row_count=unit.row_count, seconds=0.0)

    def _parts(self, rows: pa.Table, unit: Unit) -> list[pa.Table]:
        """One for each channel where a job's tasks would prepare, as Spark has ranges of buckets."""
        if not unit.prepares or unit.channel is not None:
            return [rows]
        channels = self._channels(rows, unit)
        return [rows.filter(pa.array(channels == channel)) for channel in sorted(set(channels.tolist()))]

    def _channels(self, rows: pa.Table, unit: Unit) -> np.ndarray:
        """By the partitioner's own notation for Arrow, as the planner has it; a row that runs alone is in none."""
        partitioner = open_partitioner(unit.routing or Routing(channels=unit.channels))
        relations = {relation.relation_id: relation for relation in self._log.state().relations}
        (batch,) = rows.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=ROWS)]
        return np.asarray(partitioner.place(batch, relations).channels)

    def close(self) -> None:
        self._store.close()
