"""The code that runs inside Spark's Python workers. Shipped by reference: this package must be installed there too.

A worker stages the rows of one partition, as an attempt of its own, and returns one row of JSON: what it
staged, or the error that it met. An attempt of which the driver has no such row belongs to nobody (law 3).
"""

from __future__ import annotations

import ctypes
import itertools
import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.model.epoch import StagedTable
from airflow_parallel_apply.pipeline.packed_error import pack, unpack
from airflow_parallel_apply.pipeline.target.loading import Loaded, Loader, LoadTask

_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRows:
    """The function of the job's `mapInArrow`. The secret travels in its loader, pickled, and nowhere else.

    `nonce`: of one call of `stage`, since Spark's attempt ids are unique only inside one Spark application.
    """

    loader: Loader = field(repr=False)
    nonce: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        die_with_parent()
        try:
            loaded = self._load(batches)
        except ParallelApplyError as error:
            # Spark gives a worker up whose input was not read to its end, and starting one takes seconds.
            for _ in batches:
                pass
            text = json.dumps({"error": pack(error)})
        else:
            text = json.dumps({"row_count": loaded.row_count, "tables": [asdict(table) for table in loaded.tables]})
        yield pa.record_batch([pa.array([text])], names=["result"])

    def _load(self, batches: Iterator[pa.RecordBatch]) -> Loaded:
        from pyspark import TaskContext

        first = next((batch for batch in batches if batch.num_rows), None)
        context = TaskContext.get()
        if first is None or context is None:
            return Loaded(tables=(), row_count=0)
        return self.loader.load(
            itertools.chain([first], batches),
            f"{self.nonce}:{context.taskAttemptId()}",
            task=LoadTask(job=self.nonce, number=context.partitionId()),
        )


def read_results(results: pa.Table) -> tuple[StagedTable, ...]:
    """The tables that the acknowledged attempts staged. Raises the error that one of them met."""
    tables: list[StagedTable] = []
    for text in results.column("result").to_pylist():
        value = json.loads(text)
        if "error" in value:
            raise unpack(value["error"])
        tables += [StagedTable(**table) for table in value["tables"]]
    return tuple(tables)


def warm(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Nothing, in a worker that has imported what `LoadRows` imports."""
    die_with_parent()
    for batch in batches:
        yield pa.record_batch([pa.array([True] * batch.num_rows)], names=["ready"])


def die_with_parent() -> None:
    """A worker's parent is Spark's Python daemon: after a kill -9 of it nobody else would end a waiting worker."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
