"""Pipelines that meet in their tables: in a loop each would apply what the other has applied, for ever; into one target
both would apply what their source did, each of them once.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.model.finding import Finding, Side, new_finding
from airflow_parallel_apply.pipeline.source.open import followed_at
from airflow_parallel_apply.pipeline.target.open import logs_applied_at

_SHOWN: Final = 5


def meeting_findings(pipeline: str, source: Endpoint, target: Endpoint, ours: Set[str]) -> tuple[Finding, ...]:
    """Find other pipelines that apply tables of ours, named "schema.table". Errors: those of source and target."""
    return (*_loops(source, target, ours), *_twice(pipeline, source, target, ours))


def _loops(source: Endpoint, target: Endpoint, ours: Set[str]) -> tuple[Finding, ...]:
    """Tables that another pipeline brings back: the target publishes them to a log that the source's database applies.
    A loop through a third database is not seen.
    """
    followed = followed_at(target)
    applied = logs_applied_at(source) if followed else {}
    return tuple(
        new_finding(
            Side.TARGET,
            table,
            f"pipeline {other} brings {_listed(tables & ours)} from the target back to the source: each would apply "
            "again what the other applied, forever",
            note="Follow a table in one direction only: exclude it from the patterns of one of the two pipelines.",
        )
        for other, log_id in applied.items()
        if (tables := followed.get(log_id))
        for table in sorted(tables & ours)[:1]
    )


def _twice(pipeline: str, source: Endpoint, target: Endpoint, ours: Set[str]) -> tuple[Finding, ...]:
    """Tables that another pipeline brings here from the same database, from whichever log."""
    others = {other: log_id for other, log_id in logs_applied_at(target).items() if other != pipeline}
    followed = followed_at(source) if others else {}
    return tuple(
        new_finding(
            Side.TARGET,
            table,
            f"pipeline {other} applies {_listed(tables & ours)} to this target, too, from the same source: what is "
            "inserted there would be inserted twice",
            note=f"Drop the one that is not needed any more (parallel-apply drop --pipeline {other}, with the slot and "
            "the log_url that it has). Pipelines with logs of their own may both stay, if each table is in the "
            "patterns of one alone.",
        )
        for other, log_id in others.items()
        if (tables := followed.get(log_id))
        for table in sorted(tables & ours)[:1]
    )


def _listed(tables: frozenset[str]) -> str:
    return ", ".join(sorted(tables)[:_SHOWN])
