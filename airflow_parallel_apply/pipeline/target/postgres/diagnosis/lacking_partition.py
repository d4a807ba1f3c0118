"""Rows that no partition of the target takes: the commands after which one does, whatever it is partitioned by."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, count
from typing import Any, Final

import psycopg

from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.postgres import sqlstate
from airflow_parallel_apply.postgres.quoting import quoted, suffixed

OUT_OF_BOUNDS: Final = "ExecPartitionCheckEmitError"
"""The server's function that refuses a row of a partition which is written to by its own name."""
_FINDS_PARTITION: Final = "ExecFindPartition"
_HASH: Final = re.compile(r"modulus (\d+), remainder (\d+)")
_QUERY: Final = """
SELECT p.partstrat::text, a.nspname::text, above.relname::text, ARRAY(
    SELECT r.relname::text FROM pg_catalog.pg_class r WHERE r.relnamespace = n.oid
    UNION SELECT t.typname::text FROM pg_catalog.pg_type t WHERE t.typnamespace = n.oid
), ARRAY(
    SELECT pg_catalog.pg_get_expr(r.relpartbound, r.oid)
    FROM pg_catalog.pg_inherits i
    JOIN pg_catalog.pg_class r ON r.oid = i.inhrelid
    WHERE i.inhparent = c.oid
)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = c.oid
LEFT JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid AND c.relispartition
LEFT JOIN pg_catalog.pg_class above ON above.oid = i.inhparent
LEFT JOIN pg_catalog.pg_namespace a ON a.oid = above.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""


def name_partition(connection: psycopg.Connection[Any], error: ParallelApplyError, cause: BaseException | None) -> None:
    """Give an error of a row for which there is no partition the statements that make one, or that free the table from
    the bounds it has as a partition, after the rollback. Errors: psycopg's own.
    """
    if not isinstance(cause, psycopg.Error) or cause.sqlstate != sqlstate.CHECK_VIOLATION:
        return
    schema, table, where = cause.diag.schema_name, cause.diag.table_name, cause.diag.source_function
    if schema is None or table is None or where not in (_FINDS_PARTITION, OUT_OF_BOUNDS):
        return
    found = connection.execute(_QUERY, [schema, table]).fetchone()
    if found is None:
        return
    strategy, above_schema, above, taken, bounds = found
    if where == OUT_OF_BOUNDS:
        if above is not None:
            error.hint = (
                "The target's table is a partition there, and its bounds leave this row out. Run ALTER TABLE "
                f"{quoted(above_schema, above)} DETACH PARTITION {quoted(schema, table)} at the target; then run again."
            )
        return
    # By hash there is no default.
    values = _missing_remainders(bounds) if strategy == "h" else ["DEFAULT"]
    free = _free_names(suffixed(table, "_part" if strategy == "h" else "_default"), set(taken))
    parent = quoted(schema, table)
    make = [
        f"CREATE TABLE {quoted(schema, name)} PARTITION OF {parent} {one}"
        for name, one in zip(free, values, strict=False)
    ]
    error.hint = (
        f"The target's table has no partition for this row: create one there. Run {'; '.join(make)} at the target, or "
        "make the partitions that the source has. Then run again."
    )


def _missing_remainders(bounds: Sequence[str]) -> list[str]:
    """The bounds that no partition has, by the largest modulus, which all others divide."""
    there = [(int(found[1]), int(found[2])) for found in map(_HASH.search, bounds) if found]
    modulus = max((each for each, _ in there), default=1)
    lacking = (one for one in range(modulus) if all(one % each != rest for each, rest in there))
    return [f"FOR VALUES WITH (MODULUS {modulus}, REMAINDER {one})" for one in lacking]


def _free_names(name: str, taken: set[str]) -> Iterator[str]:
    """The name itself, if nothing has it, and numbered ones."""
    names = chain([name], (f"{name}{number}" for number in count(1)))
    return (one for one in names if one not in taken)
