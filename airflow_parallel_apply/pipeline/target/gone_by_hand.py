"""Rows that went with a partition of the source's, at targets that do not read the condition which they met: a person
deletes them, or, of a feed of changes, nobody can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import START_ELSEWHERE, PlanError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import listed
from airflow_parallel_apply.pipeline.target.steps import Redefine, Remove, Statement, Step, shown

_BEHIND: Final = (
    " The rows that the transaction wrote before that come with this run: behind it delete those that meet this."
)


def require_none_gone(steps: Sequence[Step], relations: Callable[[int], Relation], *, is_feed: bool) -> None:
    """Before any step: raise `PlanError` for rows that are gone, unless somebody has said that they were deleted."""
    for step in steps:
        if isinstance(step, Remove) and step.ddl is not DdlPolicy.SKIP:
            relation = relations(step.rows.relation_id)
            way_on = f"Delete at the target the rows that meet this, in its own words: {step.rows.condition}. Then "
            if is_feed:
                way_on = f"{START_ELSEWHERE} Only where whoever reads the feed leaves these rows out: "
            raise PlanError(
                f"rows of {relation.name} went with a partition that was detached or dropped at the source, and no "
                f"change says so; they meet {step.rows.condition}",
                op="apply",
                table=relation.name,
                hint=f"{way_on}{step.skipping}.{_BEHIND if step.is_behind_rows else ''}"
                f"{_beside(step, steps, relations)}",
            )


def _beside(step: Remove, steps: Sequence[Step], relations: Callable[[int], Relation]) -> str:
    more = [*dict.fromkeys(_altered(step, steps, relations))]
    return f" Such a run takes more of the same transaction as done, so do that, too: {listed(more)}." if more else ""


def _altered(step: Remove, steps: Sequence[Step], relations: Callable[[int], Relation]) -> Iterator[str]:
    for one in steps:
        if isinstance(one, Redefine) and one.end_offset == step.end_offset:
            yield f"what it changed of the definition of {relations(one.newer_id).name}"
        elif isinstance(one, Statement) and one.end_offset == step.end_offset:
            yield shown([one.text])
        elif isinstance(one, Remove) and one.end_offset == step.end_offset and one != step:
            yield f"the rows of {relations(one.rows.relation_id).name} that meet {one.rows.condition}"
