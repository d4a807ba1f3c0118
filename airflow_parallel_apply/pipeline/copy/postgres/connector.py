"""The pair `postgresql-to-postgresql`. Each method imports what it needs: Spark's workers only load parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.copy.protocol import (
    Copying,
    CopyOrder,
    FirstCopy,
    RecopyProgress,
)
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.copy_progress import CopyProgress
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.target.protocol import Recopied


class PostgresCopies:
    """See `CopyConnector`. Rows travel as COPY text, and the record of a copy is in the target."""

    def first_copy(
        self,
        config: PipelineConfig,
        source: Endpoint,
        target: Endpoint,
        relations: Sequence[Relation],
        copying: Copying,
    ) -> FirstCopy:
        from airflow_parallel_apply.pipeline.copy.postgres.initial import InitialCopy

        return InitialCopy(config, source, target, relations, copying)

    def recopy(
        self,
        config: PipelineConfig,
        source: Endpoint,
        target: Endpoint,
        names: Sequence[tuple[str, str]],
        *,
        report: Callable[[RecopyProgress], None],
    ) -> tuple[Recopied, ...]:
        from airflow_parallel_apply.pipeline.copy.postgres.recopy import recopy_tables

        return recopy_tables(config, source, target, names, report=report)

    def load_part(self, source: Endpoint, target: Endpoint, order: CopyOrder, number: int) -> None:
        from airflow_parallel_apply.pipeline.copy.postgres.load import load_part

        load_part(source, target, order, number)

    def findings(
        self, config: PipelineConfig, source: Endpoint, target: Endpoint, relations: Sequence[Relation]
    ) -> tuple[Finding, ...]:
        from airflow_parallel_apply.pipeline.copy.postgres.check import copy_findings_at

        return copy_findings_at(config, source, target, relations)

    def progress(self, target: Endpoint, pipeline: str) -> CopyProgress | None:
        from airflow_parallel_apply.pipeline.copy.postgres.record import read_progress

        return read_progress(target, pipeline)

    def is_copying(self, target: Endpoint, pipeline: str) -> bool:
        from airflow_parallel_apply.pipeline.copy.postgres.record import is_copying

        return is_copying(target, pipeline)
