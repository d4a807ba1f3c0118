"""Finds what a lake lacks for a pipeline's tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side
from airflow_parallel_apply.pipeline.target.delta.columns import feed_findings, relation_findings, table_findings
from airflow_parallel_apply.pipeline.target.delta.formats import format_troubles
from airflow_parallel_apply.pipeline.target.delta.known import KnownTable, look_for
from airflow_parallel_apply.pipeline.target.delta.place import Lake
from airflow_parallel_apply.pipeline.target.delta.tables import open_table, read_columns, schema_of
from airflow_parallel_apply.pipeline.target.expectation import Expectation

_PARTITIONS: Final = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_date, pa.types.is_timestamp)
"""Types whose values come back from the name of a partition; an empty text comes back as null to other readers."""

_OTHERS: Final = "Feed another lake: by their seqnos the changes of two logs are not told apart."


def lake_findings(
    lake: Lake, expected: Expectation, known: Sequence[KnownTable], definitions: Callable[[], Sequence[Relation]]
) -> Iterator[Finding]:
    """See `Target.findings`. A table that is not there is made by the first commit to it. `known`: those that the
    pipeline committed to. `definitions`: all of its log.
    """
    unbegun = {relation.name for relation in expected.unbegun}
    for relation in expected.tables:
        uri = lake.table_uri(relation.schema, relation.table)
        table = open_table(lake, uri)
        _, found = look_for(lake, table, relation, known, definitions)
        if found is not None:
            what, note = found
            yield _error(relation, what, note)
        if lake.is_feed:
            yield from feed_findings(relation)
        else:
            yield from relation_findings(relation)
            yield from table_findings(relation, None if table is None else schema_of(table))
        if table is not None:
            for what, note in format_troubles(table):
                yield _error(relation, what, note)
            yield from _partition_findings(table, relation)
        begins = expected.are_empty or relation.name in unbegun or (lake.is_feed and expected.are_new)
        if table is not None and begins and has_rows(table, relation.name):
            yield _error(relation, "has rows in the lake, and is to have none", _OTHERS if lake.is_feed else "")


def has_rows(table: DeltaTable, name: str) -> bool:
    """Without statistics a table tells no number of them. Errors: `Unavailable`."""
    names = schema_of(table).names[:1]
    return any(batch.num_rows for batch in read_columns(table, name, names))


def _partition_findings(table: DeltaTable, relation: Relation) -> Iterator[Finding]:
    """Values that do not come back from the name of a partition as they were."""
    schema = schema_of(table)
    for name in table.metadata().partition_columns:
        kind = schema.field(name).type
        if not any(is_such(kind) for is_such in _PARTITIONS):
            note = "Make it without, or by a column of integers, booleans, dates or timestamps."
            yield _error(relation, f"is partitioned by {name} ({kind}), whose values do not all come back", note)


def _error(relation: Relation, what: str, note: str = "") -> Finding:
    return Finding(
        severity=Severity.ERROR,
        side=Side.TARGET,
        where=relation.name,
        what=f"{relation.name} {what}",
        is_table=True,
        note=note,
    )
