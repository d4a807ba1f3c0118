"""Tables that inherit from others at one side alone, as a pipeline, or what it follows of a table, begins.

What is altered of a parent is altered of its children: by DDL that is sent, at both sides, and where the target follows
the parent's definition. So a child of the target alone would change though the source's did not, and the other way
round. Whether tables inherit from others later than that is watched at the source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Final

from airflow_parallel_apply.pipeline.config import DdlPolicy, Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side, new_finding
from airflow_parallel_apply.pipeline.model.sent_ddl import has_word
from airflow_parallel_apply.pipeline.source.postgres.session import Session as SourceSession
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.postgres.session import Session as TargetSession
from airflow_parallel_apply.postgres.inherited_tables import Name, ancestors
from airflow_parallel_apply.postgres.quoting import quoted

Pair = tuple[Name, Name]
"""A table and one above it."""
_THERE: Final = """
SELECT w.schema, w.name
FROM unnest(%s::text[], %s::text[]) AS w (schema, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name AND c.relkind IN ('r', 'p', 'f')
"""
_ALIKE: Final = (
    "Both sides have to inherit alike before rows of {child} are applied. Where the target has none of them, the table "
    "may be dropped there instead: `parallel-apply recopy --table {child} --create-tables` makes it, with its rows."
)
_OTHERWISE: Final = "what is altered of the one would be altered of the other {where} alone"


def inheritance_findings(
    config: PipelineConfig,
    source: Endpoint,
    target: Endpoint,
    relations: Sequence[Relation],
    *,
    unbegun: Sequence[Relation] | None = None,
    sent: Callable[[], Sequence[str]] = tuple,
) -> tuple[Finding, ...]:
    """See `InheritanceCheck`. Of tables that the target lacks nothing is said."""
    followed = {(relation.schema, relation.table) for relation in relations}
    among = followed if unbegun is None else {(relation.schema, relation.table) for relation in unbegun}
    name = f"parallel_apply {config.pipeline} check"
    with (
        closing(SourceSession(source, application_name=name)) as reading,
        closing(TargetSession(target.url, pipeline=config.pipeline)) as writing,
    ):
        with reading.errors("check"):
            at_source = ancestors(reading.catalog())
        with writing.transaction("check") as connection:
            at_target = ancestors(connection)
            there = _there(connection, {name for pair in at_source for name in pair})
    possible = {pair for pair in at_source if {*pair} <= there}
    lacking = {pair for pair in possible - at_target if pair[0] in followed and among.intersection(pair)}
    surplus = {pair for pair in at_target - at_source if {*pair} <= followed and among.intersection(pair)}
    # Without ddl=apply nothing is altered there but by hand.
    severity = Severity.ERROR if config.ddl is DdlPolicy.APPLY else Severity.WARNING
    near = _nearest(lacking, possible), _nearest(surplus, at_target)
    texts = sent() if config.ddl is DdlPolicy.APPLY and any(near) else ()
    at_source_alone, at_target_alone = ([pair for pair in pairs if not _is_sent(pair, texts)] for pairs in near)
    return (
        *_findings(at_source_alone, severity, is_at_source=True),
        *_findings(at_target_alone, severity, is_at_source=False),
    )


def _is_sent(pair: Pair, texts: Iterable[str]) -> bool:
    """True if DDL that is on its way says it of these two, so that they are alike before rows come."""
    (_, child), (_, parent) = pair
    return any(all(has_word(text, word) for word in ("INHERIT", child, parent)) for text in texts)


def _there(connection: Connection, names: Collection[Name]) -> set[Name]:
    values = [[schema for schema, _ in names], [table for _, table in names]]
    return {(schema, table) for schema, table in connection.execute(_THERE, values).fetchall()}


def _nearest(pairs: Collection[Pair], known: Collection[Pair]) -> list[Pair]:
    """Those between whose tables there is no other one: the rest follows from these."""
    return sorted(
        (child, parent)
        for child, parent in pairs
        if not any(one == child and (between, parent) in known for one, between in known)
    )


def _findings(pairs: Collection[Pair], severity: Severity, *, is_at_source: bool) -> Iterator[Finding]:
    for child, parent in pairs:
        one, other = ("source", "target") if is_at_source else ("target", "source")
        otherwise = _OTHERWISE.format(where=f"at the {one}")
        yield new_finding(
            Side.TARGET,
            ".".join(child),
            f"{'.'.join(child)} inherits from {'.'.join(parent)} at the {one} and not at the {other}: {otherwise}",
            f"ALTER TABLE {quoted(*child)} {'' if is_at_source else 'NO '}INHERIT {quoted(*parent)}",
            severity=severity,
            note=_ALIKE.format(child=".".join(child)),
        )
