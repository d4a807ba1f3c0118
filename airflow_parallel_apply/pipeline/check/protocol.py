"""The protocols of the checks that need both ends at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding


class TypeCheck(Protocol):
    """Compares the types of a source with those of a target, where the target's are made as the source's are."""

    def __call__(
        self,
        config: PipelineConfig,
        source: Endpoint,
        target: Endpoint,
        relations: Sequence[Relation],
        *,
        expected: Sequence[Relation],
    ) -> tuple[Finding, ...]:
        """Find types that the target lacks, in the order in which they have to be made. `expected`: of the tables,
        those that the target has to have as they are now; what the others need may come with DDL that is on its way.
        Reads only. Errors: the pipeline's.
        """
        ...


class InheritanceCheck(Protocol):
    """Compares which tables inherit from which at both ends, before rows of them are applied."""

    def __call__(
        self,
        config: PipelineConfig,
        source: Endpoint,
        target: Endpoint,
        relations: Sequence[Relation],
        *,
        unbegun: Sequence[Relation] | None = None,
        sent: Callable[[], Sequence[str]] = tuple,
    ) -> tuple[Finding, ...]:
        """Find tables of these that inherit from another one at one side alone; of a pipeline that is under way, where
        one of both is among the `unbegun`: of others DDL may be on its way. `sent`: the DDL that is. Reads only.
        Errors: the pipeline's.
        """
        ...
