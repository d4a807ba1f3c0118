"""Finds what a copy of tables does not bring: columns that are gone, and generated ones as the source's are by now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.position import Position, low_watermark
from airflow_parallel_apply.pipeline.target.postgres.redefine import uncomputed_since
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.surplus import surplus_since
from airflow_parallel_apply.pipeline.versions import Versions


def left_surplus(
    log_url: str, target: Session, relations: Sequence[Relation], positions: Iterable[Position]
) -> tuple[str, ...]:
    """The statements that take from the target what the source has renamed or dropped since the last definition that
    was applied: no later one tells of it once the copy is made. Errors: the pipeline's.
    """
    return _left(surplus_since, log_url, target, relations, positions)


def left_uncomputed(
    log_url: str, target: Session, relations: Sequence[Relation], positions: Iterable[Position]
) -> tuple[str, ...]:
    """The statements that the target needs for what the source computes since the last definition that was applied: no
    later one tells of it once the copy is made. What the target computes otherwise since ever is its own. Errors: the
    pipeline's.
    """
    return _left(uncomputed_since, log_url, target, relations, positions)


def _left(
    since: Callable[[Connection, Session, Relation, Relation], tuple[str, ...]],
    log_url: str,
    target: Session,
    relations: Sequence[Relation],
    positions: Iterable[Position],
) -> tuple[str, ...]:
    applied_seqno = low_watermark(positions)
    known = open_reader(log_url).state().relations
    applied = Versions(one for one in known if one.first_seqno is None or one.first_seqno <= applied_seqno)
    with target.transaction("recopy") as connection:
        return tuple(
            statement
            for relation in relations
            if (before := applied.latest(relation.schema, relation.table, relation.oid)) is not None
            for statement in since(connection, target, before, relation)
        )
