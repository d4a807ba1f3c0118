"""Steps of a unit as rows of a log, for targets that keep every change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.errors import PlanError
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.model.change import LAST_SEQNO, NO_SEQNO, Operation
from airflow_parallel_apply.pipeline.target.steps import Statement, Step, Truncate

_LETTERS: Final = 200


def changed_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows without the messages among them."""
    for batch in batches:
        yield batch.filter(pc.not_equal(batch.column("operation"), Operation.MESSAGE.value))


def truncate_rows(step: Truncate) -> pa.RecordBatch:
    """A row for each table, behind one another."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "seqno": step.seqno,
                "fragno": step.fragno + number,
                "relation_id": relation_id,
                "operation": Operation.TRUNCATE.value,
                "bucket": 0,
                "key_order": 0,
                "previous_seqno": NO_SEQNO,
                "next_seqno": LAST_SEQNO,
                "values": "",
            }
            for number, relation_id in enumerate(step.relation_ids)
        ],
        schema=ROWS,
    )


def require_unaltered(steps: Iterable[Step]) -> None:
    """Raise `PlanError` for DDL text by which rows that are there may have got other values: no change says so."""
    for step in steps:
        if isinstance(step, Statement) and step.gives_other_values:
            raise PlanError(
                "the source sent DDL by which rows that are there may have other values, of which a feed of changes "
                f"learns nothing: {step.text[:_LETTERS]}",
                op="apply",
                hint="Drop the pipeline, and begin anew in another place with a copy. Only where no value that is "
                "followed is another, since there was no USING and the texts stay, or the table is not followed: "
                f"{step.skipping}.",
            )
