"""The steps of a unit as changes of tables, which are decided together and made one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_parallel_apply.pipeline.errors import PlanError
from airflow_parallel_apply.pipeline.model.epoch import StagedTable
from airflow_parallel_apply.pipeline.target.delta.state import Effect, TableChange
from airflow_parallel_apply.pipeline.target.steps import Merge, Step, Truncate


def changes_of(steps: Sequence[Step]) -> tuple[TableChange, ...]:
    """In order. Merges that follow each other are one, whose staged keys are distinct. Errors: `PlanError` for a step
    that a lake cannot do.
    """
    changes: list[TableChange] = []
    waiting: list[StagedTable] = []
    for step in steps:
        if isinstance(step, Merge):
            waiting += step.staged.tables
            continue
        changes += _merges(waiting)
        waiting = []
        match step:
            case Truncate():
                changes += [TableChange(effect=Effect.TRUNCATE, relation_id=one) for one in step.relation_ids]
            case _:
                raise PlanError(
                    f"a Delta lake cannot do the step {type(step).__name__}",
                    op="commit",
                    hint="See what the target can do in its documentation.",
                )
    return (*changes, *_merges(waiting))


def _merges(staged: Sequence[StagedTable]) -> Iterator[TableChange]:
    """One for each definition of a table, older ones first."""
    for relation_id in sorted({table.relation_id for table in staged}):
        own = [table for table in staged if table.relation_id == relation_id]
        yield TableChange(
            effect=Effect.MERGE,
            relation_id=relation_id,
            files=tuple(table.staging for table in own),
            has_unsent=any(table.has_unsent for table in own),
        )
