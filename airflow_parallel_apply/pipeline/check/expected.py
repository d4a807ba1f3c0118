"""Chooses the tables that the target has to have in the source's form, once a pipeline is under way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig
from airflow_parallel_apply.pipeline.log.open import log_exists, open_reader
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.position import Position, low_watermark
from airflow_parallel_apply.pipeline.versions import Versions


def expected_at_target(config: PipelineConfig, relations: Sequence[Relation]) -> tuple[Relation, ...]:
    """The tables of the source, as they are now, that the target has to have in the same form.

    None where the target may lack what DDL on its way will bring; else those that no change of columns lies before or
    within the backlog. A target that is right for the backlog is wrong for what comes behind such a change, and the
    other way round: the serialization point in between asks for it when everything before is applied.
    """
    if config.ddl is not DdlPolicy.REFUSE:
        return ()
    if not log_exists(config.log_url):
        return tuple(relations)
    logged = open_reader(config.log_url).state().relations
    versions: dict[str, list[Relation]] = {}
    names: dict[int | None, set[str]] = {}
    for other in logged:
        versions.setdefault(other.name, []).append(other)
        names.setdefault(other.oid, set()).add(other.name)
    changed = {
        relation.name
        for relation in relations
        if any(not relation.is_as(other) for other in versions.get(relation.name, ()))
        or (relation.oid is not None and names.get(relation.oid, {relation.name}) != {relation.name})
    }
    return tuple(relation for relation in relations if relation.name not in changed)


def settled_at_target(
    config: PipelineConfig, relations: Sequence[Relation], positions: Iterable[Position]
) -> tuple[Relation, ...]:
    """Those that are as the last definition that the log has of them, which the target has applied: whatever DDL is on
    its way, none of it made these.
    """
    if not log_exists(config.log_url):
        return ()
    known, applied_seqno = Versions(open_reader(config.log_url).state().relations), low_watermark(positions)
    lasts = [(relation, known.latest(relation.schema, relation.table, relation.oid)) for relation in relations]
    return tuple(
        relation
        for relation, last in lasts
        if last is not None
        and last.first_seqno is not None
        and last.first_seqno <= applied_seqno
        and relation.is_as(last)
    )
