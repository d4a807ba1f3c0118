"""What a lake lacks for a pipeline's tables."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side
from airflow_parallel_apply.pipeline.target.delta.columns import relation_findings, table_findings, table_schema
from airflow_parallel_apply.pipeline.target.delta.place import Lake
from airflow_parallel_apply.pipeline.target.delta.tables import open_table, schema_of
from airflow_parallel_apply.pipeline.target.expectation import Expectation


def lake_findings(lake: Lake, expected: Expectation) -> Iterator[Finding]:
    """See `Target.findings`."""
    unbegun = {relation.name for relation in expected.unbegun}
    for relation in expected.tables:
        yield from relation_findings(relation)
        table = open_table(lake, lake.table_uri(relation.schema, relation.table))
        yield from table_findings(relation, None if table is None else schema_of(table))
        if table is None and not expected.may_lack_tables:
            columns = ", ".join(f"{field.name} {field.type}" for field in table_schema(relation))
            yield _finding(
                relation.name,
                f"the lake lacks table {relation.name}",
                note=f"Make it at {lake.table_uri(relation.schema, relation.table)} with the columns {columns}, or run "
                "with start=copy and create_tables.",
            )
        if table is not None and (expected.are_empty or relation.name in unbegun) and table.count():
            yield _finding(relation.name, f"{relation.name} has rows in the lake, and is to have none")


def _finding(table: str, what: str, *, note: str = "", severity: Severity = Severity.ERROR) -> Finding:
    return Finding(severity=severity, side=Side.TARGET, where=table, what=what, is_table=True, note=note)
