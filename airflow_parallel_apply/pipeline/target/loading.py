"""The half of a target that runs where the rows are, in Spark's workers: `Loader`.

Law 3: staging belongs to one claim, or to a group of epochs, and to one attempt of one task. An attempt ends with
everything staged or with nothing, and one that nobody acknowledged is nobody's, whatever Spark retries or runs twice.
What an attempt prepared, the next one of its task takes over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from airflow_parallel_apply.pipeline.model.epoch import StagedTable


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTask:
    """A Spark task, whatever its attempt: the job's own name, and the task's number in it."""

    job: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The staging of one attempt, and the number of log rows that it was made of."""

    tables: tuple[StagedTable, ...]
    row_count: int


class Loader(Protocol):
    """Stages the rows of one unit. Pickled on its way to the workers, with the target's secret in it, which its text
    form hides; importable there without Airflow.
    """

    def load(self, batches: Iterable[pa.RecordBatch], attempt: str, *, task: LoadTask | None = None) -> Loaded:
        """Stage the net changes of `ROWS` batches in which the rows of one key are adjacent and in seqno order; or
        apply and prepare them, where the unit is one that `prepares`. `attempt`: unique for each attempt of each task.
        `task`: whose attempt it is, if its attempts are to know of each other.

        Where the target takes every change (`TargetConnector.takes_changes`), the rows are all of the unit's, in
        (seqno, fragno) order, with `fragno` and `old_key`; those of one key come to one task.

        Errors: `TargetError` with table, column and seqno where they are known; `LogError`; `Unavailable`;
        `OwnershipLost` when the claim's sessions were ended.
        """
        ...
