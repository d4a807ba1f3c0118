"""A copy's parts: every block of every table in exactly one of them, the largest first; a table without blocks in none.

Blocks need no key, cost no sort, and PostgreSQL 14 and later scans a range of them without reading the others. The last
part of a table has no end, so that what the table grows by before it is read belongs to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from airflow_parallel_apply.pipeline.copy.protocol import CopyPart
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.postgres.arrays import named
from airflow_parallel_apply.postgres.statements import statements

PART_BYTES: Final = 64 * 2**20
"""Size of a part on the source's disk: some seconds of work, so that neither a retry nor an uneven end costs much."""
MOST_PARTS: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTable:
    """A table that holds rows of followed table number `relation`. `size_bytes`: with its TOAST."""

    relation: int
    schema: str
    table: str
    is_heap: bool
    blocks: int
    size_bytes: int


def stored_tables(connection: psycopg.Connection[Any], relations: Sequence[Relation]) -> tuple[StoredTable, ...]:
    """Read the source's catalog, as a session sees it that sees the copy's snapshot. Errors: psycopg's own."""
    names = named((relation.schema, relation.table) for relation in relations)
    rows = connection.execute(statements(__package__, "parts")["parts"].encode(), names).fetchall()
    return tuple(
        StoredTable(relation=number, schema=schema, table=table, is_heap=is_heap, blocks=blocks, size_bytes=size_bytes)
        for number, schema, table, is_heap, blocks, size_bytes in rows
    )


def plan_parts(tables: Sequence[StoredTable], destinations: Sequence[TargetTable]) -> tuple[CopyPart, ...]:
    """Cut tables into parts of about `PART_BYTES`, or larger ones where they would be too many."""
    part_bytes = max(PART_BYTES, sum(table.size_bytes for table in tables) // MOST_PARTS)
    parts = [part for table in tables for part in _cut(table, destinations[table.relation], part_bytes)]
    return tuple(sorted(parts, key=lambda part: -part.weight))


def _cut(table: StoredTable, destination: TargetTable, part_bytes: int) -> list[CopyPart]:
    if table.is_heap and not table.blocks:
        # What the snapshot shows was there before it, and the tables are held: nothing has let go of a block since.
        return []
    count = min(max(-(-table.size_bytes // part_bytes), 1), max(table.blocks, 1)) if table.is_heap else 1
    bounds = [table.blocks * number // count for number in range(count)]
    return [
        CopyPart(
            table=(table.schema, table.table),
            target=(destination.relation.schema, destination.relation.table),
            target_oid=destination.oid,
            relation=destination.relation,
            first_block=first if table.is_heap else None,
            end_block=end,
            weight=table.size_bytes // count,
        )
        for first, end in zip(bounds, [*bounds[1:], None], strict=True)
    ]
