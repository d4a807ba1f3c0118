"""Chooses the tables that the target has to have in the source's form, once a pipeline is under way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig
from airflow_parallel_apply.pipeline.log.open import log_exists, open_reader
from airflow_parallel_apply.pipeline.model.change import Mark, Operation, Relation
from airflow_parallel_apply.pipeline.model.copy_text import values_of
from airflow_parallel_apply.pipeline.model.position import Position, low_watermark
from airflow_parallel_apply.pipeline.target.expectation import Successor
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


def unbegun_at_target(
    config: PipelineConfig, relations: Sequence[Relation], applied_seqno: int
) -> tuple[Relation, ...]:
    """Those that are followed since later than the log began, and of which whoever is at that seqno has applied nothing
    yet: they had no rows when the log came to follow them, so there must be none at the target. Not the successors.
    """
    return tuple(relation for relation, before in _unbegun(config, relations, applied_seqno) if not before)


def successors_at_target(
    config: PipelineConfig, relations: Sequence[Relation], applied_seqno: int
) -> tuple[Successor, ...]:
    """The others of these: those whose name another table had in the log that is followed still, under another name by
    now. Until the target has renamed that one, the rows are those of it.
    """
    return tuple(one for one in _unbegun(config, relations, applied_seqno) if one[1])


def _unbegun(config: PipelineConfig, relations: Sequence[Relation], applied_seqno: int) -> Iterator[Successor]:
    if not log_exists(config.log_url):
        return
    followed = {relation.oid for relation in relations}
    begun: set[int | None] = {None}
    named: dict[str, dict[int | None, Relation]] = {}
    for logged in open_reader(config.log_url).state().relations:
        if logged.first_seqno is None or logged.first_seqno <= applied_seqno:
            begun.add(logged.oid)
        if logged.oid in followed:
            named.setdefault(logged.name, {})[logged.oid] = logged
    for relation in relations:
        if relation.oid not in begun:
            yield relation, tuple(one for oid, one in named.get(relation.name, {}).items() if oid != relation.oid)


def sent_to_target(config: PipelineConfig, applied_seqno: int) -> tuple[str, ...]:
    """The DDL of the log that whoever is at that seqno has still to run."""
    log = open_reader(config.log_url)
    transactions = log.transactions(applied_seqno, log.state().last_seqno)
    marked = zip(transactions.column("seqno").to_pylist(), transactions.column("marks").to_pylist(), strict=True)
    columns = ["operation", "values"]
    return tuple(
        text
        for seqno, marks in marked
        if Mark.MESSAGE in (marks or ())
        for batch in log.rows(seqno - 1, seqno, columns=columns)
        for row in batch.filter(pc.equal(batch.column("operation"), Operation.MESSAGE)).to_pylist()
        for text in values_of(row["values"])
        if text is not None
    )
