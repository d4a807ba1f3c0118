"""Copying by the schemes of both ends: rows leave a source as they enter a target, so each pair has its own way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from airflow_parallel_apply.pipeline.config import POSTGRESQL, Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.copy.protocol import (
    Copying,
    CopyOrder,
    CopyProgress,
    FirstCopy,
    RecopyProgress,
)
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.target.protocol import Recopied

PAIRS: Final = frozenset({(POSTGRESQL, POSTGRESQL)})
"""The schemes of sources and targets between which rows can be copied."""


def open_first_copy(
    config: PipelineConfig, source: Endpoint, target: Endpoint, relations: Sequence[Relation], copying: Copying
) -> FirstCopy:
    """One attempt at a first run's copy. Errors: `ConfigurationError` for a pair that nothing copies between."""
    _require_pair(source, target)
    from airflow_parallel_apply.pipeline.copy.postgres.initial import InitialCopy

    return InitialCopy(config, source, target, relations, copying)


def recopy_tables(
    config: PipelineConfig,
    source: Endpoint,
    target: Endpoint,
    names: Sequence[tuple[str, str]],
    *,
    report: Callable[[RecopyProgress], None],
) -> tuple[Recopied, ...]:
    """Replace tables' rows at the target by the source's of one moment, while the pipeline stays what it is.

    Errors: `LeaseBusy` while a run owns the pipeline; `ConfigurationError`, `TargetError` for what is in the way,
    before anything is changed; those of both sides and of the log.
    """
    _require_pair(source, target)
    from airflow_parallel_apply.pipeline.copy.postgres.recopy import recopy_tables

    return recopy_tables(config, source, target, names, report=report)


def load_part(source: Endpoint, target: Endpoint, order: CopyOrder, number: int) -> None:
    """Copy a part of the record, unless that is done; runs in a Spark task. Errors: as `Copier.copy`; `OwnershipLost`
    also when a twin took over.
    """
    _require_pair(source, target)
    from airflow_parallel_apply.pipeline.copy.postgres.load import load_part

    load_part(source, target, order, number)


def copy_findings(config: PipelineConfig, target: Endpoint, relations: Sequence[Relation]) -> tuple[Finding, ...]:
    """What at the target keeps a copy from being made. Reads only. Errors: the pipeline's."""
    if target.scheme != POSTGRESQL:
        return ()
    from airflow_parallel_apply.pipeline.copy.postgres.check import check_copy

    return check_copy(config, target, relations)


def read_progress(target: Endpoint, pipeline: str) -> CopyProgress | None:
    """Of the pipeline's last copy; None when there is none, or nothing at all. Errors: the pipeline's."""
    if target.scheme != POSTGRESQL:
        return None
    from airflow_parallel_apply.pipeline.copy.postgres.record import read_progress

    return read_progress(target, pipeline)


def is_copying(target: Endpoint, pipeline: str) -> bool:
    """Whether a session that lives copies for the pipeline. Errors: the pipeline's."""
    if target.scheme != POSTGRESQL:
        return False
    from airflow_parallel_apply.pipeline.copy.postgres.record import is_copying

    return is_copying(target, pipeline)


def _require_pair(source: Endpoint, target: Endpoint) -> None:
    if (source.scheme, target.scheme) not in PAIRS:
        raise ConfigurationError(
            f"rows cannot be copied from {source.scheme}:// to {target.scheme}://",
            op="copy",
            hint="Use start=empty, or start=equal where both sides hold the same rows.",
        )
