"""The steps of a unit as changes of tables, which are decided together and made one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.model.epoch import StagedTable, Unit
from airflow_parallel_apply.pipeline.target.delta.definition import require_followable, require_redundant
from airflow_parallel_apply.pipeline.target.delta.replay import by_relation
from airflow_parallel_apply.pipeline.target.delta.staging import Staging, scope_of
from airflow_parallel_apply.pipeline.target.delta.state import Effect, TableChange
from airflow_parallel_apply.pipeline.target.older_rows import under_skipped
from airflow_parallel_apply.pipeline.target.relations import Relations
from airflow_parallel_apply.pipeline.target.skipping import with_those_beside
from airflow_parallel_apply.pipeline.target.steps import Merge, Redefine, Remove, Replay, Statement, Step, Truncate


def changes_of(steps: Sequence[Step], unit: Unit, staging: Staging, relations: Relations) -> tuple[TableChange, ...]:
    """In order; rows to replay are staged. Merges that follow each other are one, whose staged keys are distinct.
    Errors: `PlanError` for a step that a lake cannot do.
    """
    changes: list[TableChange] = []
    waiting: list[StagedTable] = []

    def added(step: Redefine | Statement) -> tuple[str, ...]:
        """The columns that are to be added."""
        if isinstance(step, Redefine):
            return require_followable(step, relations(step.older_id), relations(step.newer_id))
        require_redundant(step)
        return ()

    for number, step in enumerate(under_skipped(steps, relations)):
        if isinstance(step, Merge):
            waiting += step.staged.tables
            continue
        changes += _merges(waiting)
        waiting = []
        match step:
            case Truncate():
                changes += [TableChange(effect=Effect.TRUNCATE, relation_id=one) for one in step.relation_ids]
            case Replay():
                changes += _replays(step, unit, staging, number)
            case Redefine():
                if names := with_those_beside(added, step, steps[number + 1 :]):
                    older = () if step.is_emptied else names
                    changes.append(TableChange(effect=Effect.ADD_COLUMNS, relation_id=step.newer_id, added=older))
            case Statement():
                require_redundant(step)
            case Remove():
                continue
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


def _replays(step: Replay, unit: Unit, staging: Staging, number: int) -> Iterator[TableChange]:
    for relation_id, rows in by_relation(step.rows()).items():
        name = staging.name(scope_of(unit.channel, None), unit.token, f"replay {number}", relation_id)
        with staging.writing(name, ROWS) as writer:
            writer.write_table(rows)
        yield TableChange(effect=Effect.REPLAY, relation_id=relation_id, files=(name,))
