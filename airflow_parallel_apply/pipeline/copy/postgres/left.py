"""Names and columns that a target has from a table's past, and that a copy of the source's rows would not replace."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.copy.postgres.columns_above import left_above
from airflow_parallel_apply.pipeline.copy.postgres.computed import left_surplus, left_uncomputed
from airflow_parallel_apply.pipeline.copy.postgres.former_names import left_renamed
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.position import Position
from airflow_parallel_apply.pipeline.source.postgres.session import Session as SourceSession
from airflow_parallel_apply.pipeline.target.postgres.session import Session
from airflow_parallel_apply.postgres.inherited_tables import Name

_KEEP = " What you want to keep there: rename it to a name that the source does not use."


def require_nothing_left(
    config: PipelineConfig,
    source: SourceSession,
    session: Session,
    relations: Sequence[Relation],
    positions: Sequence[Position],
    followed: Collection[Name],
) -> None:
    """Before tables are copied anew. `followed`: all that are. Errors: `ConfigurationError` with the statements that go
    before; the sessions'.
    """
    for find, what, more in (
        (left_renamed, "the target has tables under the names that they had at the source before", ""),
        (
            partial(left_above, source=source, followed=followed),
            "the target has columns under former names in tables that these inherit them from",
            "",
        ),
        (left_surplus, "the target has columns that the source has renamed or dropped since", _KEEP),
    ):
        _refuse(config, what, find(config.log_url, session, relations, positions), more)


def require_computed(
    config: PipelineConfig, session: Session, relations: Sequence[Relation], positions: Sequence[Position]
) -> None:
    """The same, where the target has the columns that others are computed of. Errors: as above."""
    what = "the target does not compute generated columns as the source does"
    found = left_uncomputed(config.log_url, session, relations, positions)
    first = "".join(dict.fromkeys(first for first, _ in found))
    _refuse(config, what, [statement for _, statement in found], first=first)


def _refuse(config: PipelineConfig, what: str, statements: Sequence[str], more: str = "", *, first: str = "") -> None:
    if statements:
        raise ConfigurationError(
            what,
            op="recopy",
            pipeline=config.pipeline,
            hint=f"{first}Run {'; '.join(statements)} at the target, then recopy again.{more}",
        )
