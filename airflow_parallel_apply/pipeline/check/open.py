"""Checks that need both ends at once, by the schemes of both."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_parallel_apply.pipeline.config import POSTGRESQL, Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding


def type_findings(
    config: PipelineConfig,
    source: Endpoint,
    target: Endpoint,
    relations: Sequence[Relation],
    *,
    expected: Sequence[Relation],
) -> tuple[Finding, ...]:
    """Types of the source that the target lacks, in the order in which they have to be made; none where the target's
    types are not the source's. `expected`: of the tables, those that the target has to have as they are now. Errors:
    the pipeline's.
    """
    if {source.scheme, target.scheme} != {POSTGRESQL}:
        return ()
    from airflow_parallel_apply.pipeline.check.postgres.missing_types import type_findings

    return type_findings(config, source, target, relations, expected=expected)
