"""Finds what a copy of tables does not bring: columns that are gone, and generated ones as the source's are by now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.position import Position, low_watermark
from airflow_parallel_apply.pipeline.target.postgres.redefine.redefine import uncomputed_since
from airflow_parallel_apply.pipeline.target.postgres.redefine.surplus import surplus_since
from airflow_parallel_apply.pipeline.target.postgres.session import Session
from airflow_parallel_apply.pipeline.versions import Versions


def left_surplus(
    log_url: str, target: Session, relations: Sequence[Relation], positions: Iterable[Position]
) -> tuple[str, ...]:
    """The statements that take from the target what the source has renamed or dropped since the last definition that
    was applied: no later one tells of it once the copy is made. A message may have made at the target what only later
    definitions, or sightings, have. Errors: the pipeline's.
    """
    state = open_reader(log_url).state()
    applied, later = _divided(state.relations, positions)
    names = {sighting.oid: dict(sighting.names) for sighting in state.sightings}
    with target.transaction("recopy") as connection:
        return tuple(
            statement
            for relation, before in _with_former(relations, applied)
            for statement in surplus_since(
                connection,
                [before, *(one for one in later if one.oid is not None and one.oid == relation.oid)],
                relation,
                names.get(relation.oid, {}) if relation.oid is not None else {},
            )
        )


def left_uncomputed(
    log_url: str, target: Session, relations: Sequence[Relation], positions: Iterable[Position]
) -> tuple[tuple[str, str], ...]:
    """The statements that the target needs for what the source computes since the last definition that was applied,
    each behind the beginning of its hint: no later definition tells of it once the copy is made. What the target
    computes otherwise since ever is its own. Errors: the pipeline's.
    """
    applied, _ = _divided(open_reader(log_url).state().relations, positions)
    with target.transaction("recopy") as connection:
        return tuple(
            statement
            for relation, before in _with_former(relations, applied)
            for statement in uncomputed_since(connection, before, relation)
        )


def _divided(
    known: Sequence[Relation], positions: Iterable[Position]
) -> tuple[tuple[Relation, ...], tuple[Relation, ...]]:
    """The definitions that were applied, and those that were not yet."""
    applied_seqno = low_watermark(positions)
    applied = [one for one in known if one.first_seqno is None or one.first_seqno <= applied_seqno]
    later = [one for one in known if one.first_seqno is not None and one.first_seqno > applied_seqno]
    return tuple(applied), tuple(later)


def _with_former(relations: Iterable[Relation], applied: Iterable[Relation]) -> tuple[tuple[Relation, Relation], ...]:
    """The tables whose last applied definition is known, with it."""
    versions = Versions(applied)
    return tuple(
        (relation, before)
        for relation in relations
        if (before := versions.latest(relation.schema, relation.table, relation.oid)) is not None
    )
