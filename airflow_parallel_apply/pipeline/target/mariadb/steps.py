"""The steps of a unit, inside the one transaction that moves its positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, assert_never

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import START_ANEW, PlanError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import StagedTable
from airflow_parallel_apply.pipeline.model.finding import errors, sentence
from airflow_parallel_apply.pipeline.model.sent_ddl import shown_ddl
from airflow_parallel_apply.pipeline.target.mariadb import by_hand
from airflow_parallel_apply.pipeline.target.mariadb.fit import misfits
from airflow_parallel_apply.pipeline.target.mariadb.holding import hold_table
from airflow_parallel_apply.pipeline.target.mariadb.merge import Part, merge_parts
from airflow_parallel_apply.pipeline.target.mariadb.replay import Replayer
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.staging import require_shape
from airflow_parallel_apply.pipeline.target.mariadb.table_names import (
    RenamingLeft,
    missing_table,
    renaming_left,
    require_own_name,
)
from airflow_parallel_apply.pipeline.target.mariadb.tables import find_table
from airflow_parallel_apply.pipeline.target.older_rows import under_skipped
from airflow_parallel_apply.pipeline.target.redefinition import compare_definitions
from airflow_parallel_apply.pipeline.target.relations import Relations
from airflow_parallel_apply.pipeline.target.skipping import with_those_beside
from airflow_parallel_apply.pipeline.target.steps import Merge, Redefine, Remove, Replay, Statement, Step, Truncate

_RENAMED: Final = (
    "Without the RENAME, where you have done that since a run said so; if somebody did it before, the tables have "
    f"rows of each other, and only a new start leads on. {START_ANEW}"
)


def run_steps(session: Session, relations: Relations, steps: Sequence[Step]) -> None:
    """Errors: `PlanError` for what this target cannot do; as `hold_table`, `merge_parts`, `Replayer.run`."""
    require = partial(_require_done, session, relations, steps)
    for number, step in enumerate(under_skipped(steps, relations)):
        match step:
            case Merge(staged):
                merge_parts(session, [_part(session, relations, table) for table in staged.tables])
            case Truncate():
                # The server's own TRUNCATE is a definition: it would commit what is under way.
                for relation_id in step.relation_ids:
                    session.execute(f"DELETE FROM {hold_table(session, relations, relation_id).quoted}")
            case Replay(rows):
                Replayer(session, relations).run(rows())
            case Redefine():
                with_those_beside(require, step, steps[number + 1 :])
            case Statement():
                require(step)
            case Remove():
                continue
            case _:
                assert_never(step)


def _part(session: Session, relations: Relations, staged: StagedTable) -> Part:
    table = hold_table(session, relations, staged.relation_id)
    require_shape(session, staged.staging, table)
    return Part(table=table, staged=staged)


def _require_done(session: Session, relations: Relations, steps: Sequence[Step], step: Redefine | Statement) -> None:
    if isinstance(step, Redefine):
        _require_followed(session, relations, steps, step)
    else:
        raise PlanError(
            f"the target runs no DDL text: {shown_ddl(step.text)}",
            hint=f"Run it there by hand, in the server's own words, and {step.skipping}.",
        )


def _require_followed(session: Session, relations: Relations, steps: Sequence[Step], step: Redefine) -> None:
    """Go on under a newer definition where somebody has changed the target by hand, as ddl=skip says: to the last one
    that the unit brings.
    """
    old, new = relations(step.older_id), relations(step.newer_id)
    renaming = renaming_left(session, old, new)
    redefinition = compare_definitions(old, new)
    recomputed = by_hand.recomputed(session, old, new)
    is_other = redefinition.changes or redefinition.uncertain or redefinition.unclear or recomputed
    is_vouched_for = step.ddl is DdlPolicy.SKIP and (renaming is None or renaming.may_be_done)
    if not is_vouched_for and (renaming is not None or is_other):
        raise PlanError(
            "the table's definition changed at the source, and the target cannot follow by itself",
            table=new.name,
            hint=_sentences(
                f"Change the target's table by hand, and {step.skipping}",
                *_left(session, old, new, renaming),
                *recomputed,
            ),
        )
    if is_vouched_for and any(_brings_newer(one, new, relations) for one in steps):
        return
    require_own_name(session, new, relations.definitions())
    if find_table(session, new) is None:
        raise missing_table(session, new)
    found = errors(misfits(session, new))
    if found:
        raise PlanError(
            f"the table's definition changed at the source, and the target's does not fit: {found[0].what}",
            table=new.name,
            hint=_sentences(*_left(session, old, new, None, fixes=found[0].fix), found[0].note),
        )


def _brings_newer(step: Step, relation: Relation, relations: Relations) -> bool:
    if not isinstance(step, Redefine) or step.newer_id <= relation.relation_id:
        return False
    return relation.oid is not None and relations(step.newer_id).oid == relation.oid


def _left(
    session: Session, old: Relation, new: Relation, renaming: RenamingLeft | None, fixes: Sequence[str] = ()
) -> Iterator[str]:
    """The part that is left for a person to do. `fixes`: of the table as it is, where the definitions tell nothing."""
    is_renamed = renaming is None
    commands = by_hand.commands(session, old, new, is_renamed=is_renamed) or fixes
    if found := (*((renaming.command,) if renaming is not None else ()), *commands):
        yield f"At the target: {'; '.join(found)}"
    if renaming is not None and renaming.may_be_done:
        yield _RENAMED
    yield from by_hand.notes(session, old, new, is_renamed=is_renamed)


def _sentences(*parts: str) -> str:
    return " ".join(sentence(part) for part in parts if part)
