"""The initial copy into the log: the rows that a first run finds become the log's first transactions.

Whatever applies the log applies them: in parallel, in units of bounded size, exactly once, into any target, and from
where it was when it was cut off. So a copy is whole as soon as the log is::

    log, emptied ─▶ rows … rows ─▶ one manifest ─▶ recorded as begun
        │              │               │
        │              files that      a log that is whole, of a stream that has not begun:
        │              nobody names    emptied by the next attempt
        nothing is in it

A stream that was not recorded as begun is made anew, at another snapshot, and what the log has of the former one goes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

from airflow_parallel_apply.pipeline.capture.values import IntoLog
from airflow_parallel_apply.pipeline.errors import OwnershipLost
from airflow_parallel_apply.pipeline.log.copy_note import write_copy_note
from airflow_parallel_apply.pipeline.log.writing import open_writer
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.copy_progress import CopyProgress
from airflow_parallel_apply.pipeline.source.protocol import CopiedPart, Preparing, Snapshot

_REPORT_SECONDS: Final = 1.0


def copy_into_log(url: str, preparing: Preparing, snapshot: Snapshot, into: IntoLog) -> str:
    """Write the snapshot's rows into a log without a transaction, which has its definitions; a sentence for the user.

    Memory: a segment's rows. Errors: those of `Preparing.rows`, the log's; `OwnershipLost` when it was cancelled. After
    any of them the log is as it was.
    """
    writer = open_writer(url)
    relations = [replace(relation, relation_id=writer.relation_id(relation)[0]) for relation in snapshot.relations]
    progress = _Progress(url, into, relations)
    try:
        with closing(preparing.rows(snapshot, relations, first_seqno=writer.state().last_seqno + 1)) as parts:
            for part in parts:
                if into.cancelled():
                    raise OwnershipLost("the copy was cancelled", op="copy")
                writer.append(part.rows, part.transactions)
                progress.add(part)
        writer.commit(snapshot.offset)
    except BaseException as error:
        writer.abandon()
        progress.fail(error)
        raise
    return progress.finish()


class _Progress:
    """Tells of a copy about once a second."""

    def __init__(self, url: str, into: IntoLog, relations: Sequence[Relation]) -> None:
        self._url = url
        self._into = into
        self._tables = len(relations)
        self._tables_done = 0
        self._rows = 0
        self._bytes = 0
        self._fraction = 0.0
        self._began = self._told = time.monotonic()
        self._tell("copying")

    def add(self, part: CopiedPart) -> None:
        self._tables_done, self._fraction = part.tables, part.fraction
        self._rows += part.rows.num_rows
        self._bytes += sum(part.transactions.column("byte_count").to_pylist())
        if time.monotonic() - self._told >= _REPORT_SECONDS:
            self._tell("copying")

    def fail(self, error: BaseException) -> None:
        self._tell("failed", failure=str(error) or type(error).__name__)

    def finish(self) -> str:
        self._tables_done, self._fraction = self._tables, 1.0
        self._tell("finished")
        return f"Copied {self._rows:,} rows of {self._tables} tables, {self._bytes / 1e6:,.1f} MB, into the log."

    def _tell(self, phase: str, *, failure: str | None = None) -> None:
        self._told = time.monotonic()
        seconds = self._told - self._began
        is_under_way = self._fraction and phase == "copying"
        progress = CopyProgress(
            phase=phase,
            parts=self._tables,
            parts_done=self._tables_done,
            rows=self._rows,
            bytes=self._bytes,
            seconds=seconds,
            fraction=self._fraction,
            seconds_left=seconds * (1 - self._fraction) / self._fraction if is_under_way else None,
            failure=failure,
        )
        write_copy_note(self._url, progress.to_json())
        self._into.report(progress)
