"""Asks which rows partitions have, while they are there: `with_bounds`. Of one that is gone, nothing tells it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import psycopg

from airflow_parallel_apply.pipeline.source.postgres.proof.registration import Bounds, Partition, RegisteredTable
from airflow_parallel_apply.pipeline.source.postgres.session import statement
from airflow_parallel_apply.postgres.arrays import numbers

_PATIENCE: Final = "200ms"
"""Somebody may have a partition locked for hours: it is asked for again at the next look."""
_AT_ONCE: Final = 100
"""Locks of a transaction: there is room for some thousands of all."""
_LINKS: Final = """
SELECT inhrelid::bigint, inhparent::bigint, xmin::text::bigint
FROM pg_catalog.pg_inherits
WHERE inhrelid = ANY (%(oids)s::oid[]) AND NOT inhdetachpending
"""


def with_bounds(
    connection: psycopg.Connection[Any], table: RegisteredTable, before: RegisteredTable | None
) -> RegisteredTable:
    """A table as it is now, with what is known of its partitions `before`, unless a column may have another name since,
    or can be asked. Errors: psycopg's own.
    """
    is_same = before is not None and before.versions == table.versions
    parts = before.partitions if before is not None and is_same else ()
    former = {(part.oid, part.parent, part.link): part.bounds for part in parts}
    known = {
        part.oid: bounds
        for part in table.partitions
        if (bounds := former.get((part.oid, part.parent, part.link))) is not None
    }
    if len(known) < len(table.partitions):
        # Of those below another one that was attached otherwise, the bounds are others, too.
        every = {part.oid: part for part in table.partitions}
        known = {oid: bounds for oid, bounds in known.items() if all(one.oid in known for one in _path(every, oid))}
        unknown = [part.oid for part in table.partitions if part.oid not in known]
        for first in range(0, len(unknown), _AT_ONCE):
            known |= _asked(connection, table.oid, every, unknown[first : first + _AT_ONCE])
    return replace(table, partitions=tuple(replace(part, bounds=known.get(part.oid)) for part in table.partitions))


def _asked(
    connection: psycopg.Connection[Any], root: int, every: Mapping[int, Partition], oids: list[int]
) -> Mapping[int, Bounds]:
    """Those that are what they were when the table was looked at. The first statement locks them, so that the others
    tell of one moment.
    """
    wanted = {"oids": numbers(oids), "roots": numbers([root])}
    links: dict[int, tuple[int, int]] = {}
    with (
        suppress(psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable, psycopg.errors.InternalError_),
        connection.transaction(),
    ):
        connection.execute(f"SET LOCAL lock_timeout = '{_PATIENCE}'")
        connection.execute(statement("bounds"), wanted)
        found = connection.execute(statement("bounds"), wanted).fetchall()
        above = {part.oid for oid in oids for part in _path(every, oid)}
        found_links = connection.execute(_LINKS, {"oids": numbers(above)})
        links = {oid: (parent, link) for oid, parent, link in found_links}
    if not links:
        return {}
    are_same = {oid for oid, link in links.items() if link == (every[oid].parent, every[oid].link)}
    return {
        oid: Bounds(rows=rows or "", keys=tuple((number, name, type_name) for number, name, type_name in keys))
        for oid, rows, keys in found
        if all(one.oid in are_same for one in _path(every, oid))
    }


def _path(parts: Mapping[int, Partition], oid: int) -> Iterator[Partition]:
    """A partition, and those that it is below."""
    while oid in parts:
        yield parts[oid]
        oid = parts[oid].parent
