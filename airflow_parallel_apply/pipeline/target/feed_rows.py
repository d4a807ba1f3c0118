"""Steps of a unit as rows of a log, for targets that keep every change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import START_ELSEWHERE, PlanError
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.model.change import LAST_SEQNO, NO_SEQNO, Operation, Relation
from airflow_parallel_apply.pipeline.model.kept_texts import column_keeps_texts
from airflow_parallel_apply.pipeline.model.sent_ddl import shown_ddl
from airflow_parallel_apply.pipeline.target.redefinition import compare_definitions
from airflow_parallel_apply.pipeline.target.skipping import with_those_beside
from airflow_parallel_apply.pipeline.target.steps import Redefine, Statement, Step, Truncate

_OR_RUN_ALONE: Final = " Where their texts stay as they are, the run alone is enough."


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


def require_unaltered(steps: Sequence[Step], relations: Callable[[int], Relation]) -> None:
    """Raise `PlanError` where rows that are there may have got values that no change says: by DDL text, under another
    type, or in a column of which nothing tells what older rows have.
    """

    def require(step: Redefine | Statement) -> None:
        if isinstance(step, Statement):
            _require_same_values(step)
        elif not (step.ddl is DdlPolicy.SKIP or step.is_emptied):
            _require_told(step, relations(step.older_id), relations(step.newer_id))

    for number, step in enumerate(steps, start=1):
        if isinstance(step, Redefine):
            with_those_beside(require, step, steps[number:])
        elif isinstance(step, Statement):
            require(step)


def _require_same_values(step: Statement) -> None:
    if step.gives_other_values:
        raise PlanError(
            "the source sent DDL by which rows that are there may have other values, of which a feed of changes "
            f"learns nothing: {shown_ddl(step.text)}",
            op="apply",
            hint=f"{START_ELSEWHERE} Only where no value that is followed is another, since there was no USING and the "
            f"texts stay, or the table is not followed: {step.skipping}.",
        )


def _require_told(step: Redefine, older: Relation, newer: Relation) -> None:
    found = compare_definitions(older, newer)
    added = [change.new for change in found.changes if change.old is None]
    cast = [one.new for one in found.changes if one.old and one.new and not column_keeps_texts(one.old, one.new)]
    unknown = (*(one for one in added if one is not None and one.fill is None), *cast, *found.uncertain, *found.unclear)
    names = [column.name for column in newer.columns if column in unknown]
    if names:
        raise PlanError(
            f"nothing tells what older rows of {newer.name} have in {', '.join(names)} since, and a feed of changes "
            "learns nothing of it",
            op="apply",
            table=newer.name,
            column=names[0],
            hint="Update these rows at the source, as far as they are still there, so that they are sent, and "
            f"{step.skipping}.{_OR_RUN_ALONE if len(cast) == len(unknown) else ''}",
        )
