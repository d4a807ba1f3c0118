"""Checks that need both ends at once, by the schemes of both: each pair has its own.

A pair is named `<source>-to-<target>`; another package brings one as an entry point of that name (`schemes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from airflow_parallel_apply.pipeline.check.protocol import InheritanceCheck, TypeCheck
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.open import POSTGRESQL
from airflow_parallel_apply.pipeline.schemes import Schemes, pair_of

TYPE_CHECKS: Final = Schemes(
    thing="check of types",
    group="airflow_parallel_apply.type_checks",
    ours={
        pair_of(POSTGRESQL, POSTGRESQL): "airflow_parallel_apply.pipeline.check.postgres.missing_types:type_findings"
    },
)

INHERITANCE_CHECKS: Final = Schemes(
    thing="check of inheritance",
    group="airflow_parallel_apply.inheritance_checks",
    ours={
        pair_of(
            POSTGRESQL, POSTGRESQL
        ): "airflow_parallel_apply.pipeline.check.postgres.inheritance:inheritance_findings"
    },
)


def type_findings(
    config: PipelineConfig,
    source: Endpoint,
    target: Endpoint,
    relations: Sequence[Relation],
    *,
    expected: Sequence[Relation],
) -> tuple[Finding, ...]:
    """Find types of the source that the target lacks: see `TypeCheck`. None for a pair without a check."""
    pair = pair_of(source.scheme, target.scheme)
    if pair not in TYPE_CHECKS.known():
        return ()
    check: TypeCheck = TYPE_CHECKS.load(pair)
    return check(config, source, target, relations, expected=expected)


def inheritance_findings(
    config: PipelineConfig,
    source: Endpoint,
    target: Endpoint,
    relations: Sequence[Relation],
    *,
    unbegun: Sequence[Relation] | None = None,
    sent: Callable[[], Sequence[str]] = tuple,
) -> tuple[Finding, ...]:
    """Find tables that inherit otherwise at the target: see `InheritanceCheck`. None for a pair without a check."""
    pair = pair_of(source.scheme, target.scheme)
    if pair not in INHERITANCE_CHECKS.known():
        return ()
    check: InheritanceCheck = INHERITANCE_CHECKS.load(pair)
    return check(config, source, target, relations, unbegun=unbegun, sent=sent)
