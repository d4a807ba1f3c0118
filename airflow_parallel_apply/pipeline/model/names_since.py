"""The names that followed tables have behind a place of the log, or get later."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Relation


def names_since(relations: Sequence[Relation], after_seqno: int) -> frozenset[tuple[str, str]]:
    """Schema and name of each table that these define: what it has behind this seqno, and what it gets later."""
    names: dict[int | str, set[tuple[str, str]]] = {}
    for relation in relations:
        table = relation.oid or relation.name
        if relation.first_seqno is not None and NO_SEQNO < relation.first_seqno <= after_seqno:
            names[table] = set()
        names.setdefault(table, set()).add((relation.schema, relation.table))
    return frozenset[tuple[str, str]]().union(*names.values())
