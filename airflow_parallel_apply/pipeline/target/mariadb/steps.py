"""The steps of a unit, inside the one transaction that moves its positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import PlanError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import StagedTable
from airflow_parallel_apply.pipeline.model.finding import errors, sentence
from airflow_parallel_apply.pipeline.target.mariadb import by_hand
from airflow_parallel_apply.pipeline.target.mariadb.fit import misfits
from airflow_parallel_apply.pipeline.target.mariadb.holding import hold_table
from airflow_parallel_apply.pipeline.target.mariadb.merge import Part, merge_parts
from airflow_parallel_apply.pipeline.target.mariadb.replay import Replayer
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.staging import require_shape
from airflow_parallel_apply.pipeline.target.older_rows import under_skipped
from airflow_parallel_apply.pipeline.target.redefinition import compare_definitions
from airflow_parallel_apply.pipeline.target.relations import Relations
from airflow_parallel_apply.pipeline.target.steps import Merge, Redefine, Replay, Statement, Step, Truncate


def run_steps(session: Session, relations: Relations, steps: Sequence[Step]) -> None:
    """Errors: `PlanError` for what this target cannot do; as `hold_table`, `merge_parts`, `Replayer.run`."""
    for step in under_skipped(steps, relations):
        match step:
            case Merge(staged):
                merge_parts(session, [_part(session, relations, table) for table in staged.tables])
            case Truncate():
                # The server's own TRUNCATE is a definition: it would commit what is under way.
                for relation_id in step.relation_ids:
                    session.execute(f"DELETE FROM {hold_table(session, relations(relation_id)).quoted}")
            case Replay(rows):
                Replayer(session, relations).run(rows())
            case Redefine():
                _require_followed(session, relations, step)
            case Statement():
                raise PlanError(
                    f"the target runs no DDL text: {' '.join(step.text.split())[:200]}",
                    hint="Run it there by hand, in the server's own words, and the pipeline with ddl=skip.",
                )
            case _:
                assert_never(step)


def _part(session: Session, relations: Relations, staged: StagedTable) -> Part:
    table = hold_table(session, relations(staged.relation_id))
    require_shape(session, staged.staging, table)
    return Part(table=table, staged=staged)


def _require_followed(session: Session, relations: Relations, step: Redefine) -> None:
    """Go on under a newer definition where somebody has changed the target by hand, as ddl=skip says."""
    old, new = relations(step.older_id), relations(step.newer_id)
    redefinition = compare_definitions(old, new)
    recomputed = by_hand.recomputed(session, old, new)
    is_other = redefinition.changes or redefinition.uncertain or redefinition.unclear or recomputed
    if step.ddl is not DdlPolicy.SKIP and is_other:
        raise PlanError(
            "the table's definition changed at the source, and the target cannot follow by itself",
            table=new.name,
            hint=_sentences(
                f"Change the target's table by hand, and {step.skipping}",
                *_left(session, old, new),
                *recomputed,
            ),
        )
    found = errors(misfits(session, new))
    if found:
        raise PlanError(
            f"the table's definition changed at the source, and the target's does not fit: {found[0].what}",
            table=new.name,
            hint=_sentences(
                *(_left(session, old, new) or (f"To fix it: {one}" for one in found[0].fix)), found[0].note
            ),
        )


def _left(session: Session, old: Relation, new: Relation) -> tuple[str, ...]:
    """The part that is left for a person to do."""
    found = by_hand.commands(session, old, new)
    return (*((f"At the target: {'; '.join(found)}",) if found else ()), *by_hand.notes(old, new))


def _sentences(*parts: str) -> str:
    return " ".join(sentence(part) for part in parts if part)
