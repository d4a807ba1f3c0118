"""Two pipelines in a loop: each would apply what the other has applied, for ever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding, Side, new_finding
from airflow_parallel_apply.pipeline.source.open import followed_at
from airflow_parallel_apply.pipeline.target.open import logs_applied_at

_SHOWN: Final = 5


def loop_findings(source: Endpoint, target: Endpoint, relations: Sequence[Relation]) -> tuple[Finding, ...]:
    """Tables that another pipeline brings back: the target publishes them to a log that the source's database applies.
    A loop through a third database is not seen. Errors: those of a source and of a target.
    """
    followed = followed_at(target)
    applied = logs_applied_at(source) if followed else {}
    ours = {relation.name for relation in relations}
    return tuple(
        new_finding(
            Side.TARGET,
            table,
            f"pipeline {applied[log_id]} brings {', '.join(sorted(tables & ours)[:_SHOWN])} from the target back to "
            "the source: each would apply again what the other applied, forever",
            note="Follow a table in one direction only: exclude it from the patterns of one of the two pipelines.",
        )
        for log_id, tables in followed.items()
        if log_id in applied
        for table in sorted(tables & ours)[:1]
    )
