"""Which tables may be checked against the target before a run: those whose definition never changed."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.event import Relation
from airflow_parallel_apply.pipeline.log.open import log_exists, open_reader


def settled(config: PipelineConfig, relations: Sequence[Relation]) -> tuple[Relation, ...]:
    """Of the source's tables as they are now, those that no change of columns lies before or within the backlog.

    A target that is right for the backlog is wrong for what comes behind such a change, and the other way round. The
    serialization point in between asks for it when everything before is applied.
    """
    if not log_exists(config.log_url):
        return tuple(relations)
    logged = open_reader(config.log_url).state().relations
    changed = {
        relation.name
        for relation in relations
        for other in logged
        if (other.schema, other.table) == (relation.schema, relation.table) and not relation.is_as(other)
    }
    return tuple(relation for relation in relations if relation.name not in changed)
