"""Detects the TRUNCATE of a single partition, which a publication that sends partitions as their root does not send.

A second publication of the partitioned tables, of truncations alone and under the partitions' own names, makes the slot
send it. It is read only if a partition has a new file or is new itself, because the server then decodes its WAL again.

The partitions are also members themselves: the server refuses to make a table unlogged that is in a publication, but
not a partition of which only the root is. What is written to an unlogged partition is not in the WAL. Only an owner may
publish a table: a partition of another owner is left out, and `check` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.source.postgres.pending import Pending
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import PARTITIONED, RegisteredTable
from airflow_parallel_apply.pipeline.source.postgres.wire.messages import WireRelation, parse_relation, parse_truncate

_WITH_ROWS: Final = "r"

_OWNED: Final = """
SELECT n.nspname, c.relname, EXISTS (
    SELECT
    FROM pg_catalog.pg_publication_rel r
    JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
    WHERE r.prrelid = c.oid AND p.pubname = %s
)
FROM unnest(%s::text[], %s::text[]) AS named (schema, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = named.schema
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = named.name
WHERE pg_catalog.pg_has_role(c.relowner, 'USAGE')
"""

_TELLS: Final = "SELECT pubtruncate AND NOT pubviaroot FROM pg_catalog.pg_publication WHERE pubname = %s"
"""Whether a publication tells what `watch` wants of it."""


def watch_name(publication: str) -> str:
    """The second publication's name, which is no pipeline's: theirs have no dot."""
    return f"{publication}.parts"


def watch(connection: psycopg.Connection[Any], publication: str, tables: Iterable[RegisteredTable]) -> bool:
    """Have the truncations of these tables' partitions told from now on, and keep these logged, where the role owns
    them. The second publication may have been altered: then it tells them again. False if there is nothing to do.
    Errors: psycopg's own.
    """
    untold = _owned(connection, publication, [member for table in tables for member in unwatched(table)])
    if not untold:
        return False
    name = sql.Identifier(watch_name(publication))
    missing = [sql.SQL("ONLY {}").format(sql.Identifier(*member)) for *member, is_in_it in untold if not is_in_it]
    names = sql.SQL(", ").join(missing)
    found = connection.execute(_TELLS, [watch_name(publication)]).fetchone()
    if found is None:
        create = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish = 'truncate')")
        connection.execute(create.format(name, names))
        return True
    if found != (True,):
        # Not without need: what is in it counts from its last alteration on, and what was truncated before is in doubt.
        options = "publish = 'truncate', publish_via_partition_root = false"
        connection.execute(sql.SQL("ALTER PUBLICATION {} SET ({})").format(name, sql.SQL(options)))
    if missing:
        connection.execute(sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(name, names))
    return True


def _owned(
    connection: psycopg.Connection[Any], publication: str, members: Sequence[tuple[str, str]]
) -> list[tuple[str, str, bool]]:
    """Those of these schemas and names that the role may publish, and whether they are in the second publication."""
    if not members:
        return []
    schemas, names = zip(*members, strict=True)
    return connection.execute(_OWNED, [watch_name(publication), list(schemas), list(names)]).fetchall()


def unwatched(table: RegisteredTable) -> tuple[tuple[str, str], ...]:
    """The schemas and names of what the second publication lacks of a table."""
    if table.kind != PARTITIONED:
        return ()
    root = () if table.watched is not None else ((table.schema, table.table),)
    parts = (
        (part.schema, part.table)
        for part in table.partitions
        if part.kind == _WITH_ROWS and part.watched is None and not part.is_unlogged
    )
    return (*root, *parts)


def unwatch(connection: psycopg.Connection[Any], publication: str) -> None:
    """Remove the second publication, if there is one. Errors: psycopg's own."""
    connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(watch_name(publication))))


def truncated_alone(pending: Pending, tables: Sequence[RegisteredTable]) -> frozenset[int]:
    """The oids of partitions of these tables that a transaction above the slot's position truncated without the table
    itself. Errors: psycopg's own.
    """
    pending.bring_to_disk()
    roots = {part.oid: table.oid for table in tables for part in table.partitions}
    parts = replace(pending, publication=watch_name(pending.publication))
    told = [(lsn, oid) for lsn, oids in _truncations(parts) for oid in oids if oid in roots]
    # One record of the WAL says all that one command truncated, to both publications.
    whole = dict(_truncations(pending)) if told else {}
    return frozenset(oid for lsn, oid in told if roots[oid] not in whole.get(lsn, ()))


def written(pending: Pending, parts: Mapping[int, int]) -> frozenset[int]:
    """The oids of partitions that got rows above the slot's position, behind the last truncation there of their whole
    table. `parts`: the oid of that table, by their own. Errors: psycopg's own.

    The server describes table and partition before the first row that is written to it, and again behind a TRUNCATE.
    """
    pending.bring_to_disk()
    found: set[int] = set()
    before = 0
    for _, data in pending.read("truncations"):
        if chr(data[0]) == "R":
            oid = int.from_bytes(data[1:5])
            if parts.get(oid) == before:
                found.add(oid)
            before = oid
        else:
            whole = parse_truncate(data).oids
            found -= {part for part, table in parts.items() if table in whole}
            before = 0
    return frozenset(found)


def descriptions(pending: Pending) -> Iterator[tuple[int, WireRelation]]:
    """Those that the server sends of tables above the slot's position, as far as they are on disk, each before a row or
    a truncation, and with the LSN of that. Errors: psycopg's own.
    """
    return ((lsn, parse_relation(data)) for lsn, data in pending.read("truncations") if chr(data[0]) == "R")


def _truncations(pending: Pending) -> Iterator[tuple[int, tuple[int, ...]]]:
    for lsn, data in pending.read("truncations"):
        if chr(data[0]) == "T":
            yield lsn, parse_truncate(data).oids
