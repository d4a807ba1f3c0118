"""Finds what a lake lacks for a pipeline's tables."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side
from airflow_parallel_apply.pipeline.target.delta.columns import feed_findings, relation_findings, table_findings
from airflow_parallel_apply.pipeline.target.delta.place import Lake
from airflow_parallel_apply.pipeline.target.delta.tables import open_table, schema_of
from airflow_parallel_apply.pipeline.target.expectation import Expectation


def lake_findings(lake: Lake, expected: Expectation) -> Iterator[Finding]:
    """See `Target.findings`. A table that is not there is made by the first commit to it."""
    unbegun = {relation.name for relation in expected.unbegun}
    for relation in expected.tables:
        table = open_table(lake, lake.table_uri(relation.schema, relation.table))
        if lake.is_feed:
            yield from feed_findings(relation)
        else:
            yield from relation_findings(relation)
            yield from table_findings(relation, None if table is None else schema_of(table))
        if table is not None and (expected.are_empty or relation.name in unbegun) and table.count():
            yield Finding(
                severity=Severity.ERROR,
                side=Side.TARGET,
                where=relation.name,
                what=f"{relation.name} has rows in the lake, and is to have none",
                is_table=True,
            )
