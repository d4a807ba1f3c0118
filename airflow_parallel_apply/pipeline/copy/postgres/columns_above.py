"""Columns that a table has, at the source, from one above it that is followed and not copied with it.

The target alters such a column in the table above, and with it in the copy, as soon as a row of that table comes. So
before the copy is made, the table above has to have its columns under the source's present names. Otherwise these would
be given to the columns of the copy once more, with other values in them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from psycopg import sql

from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.position import Position, low_watermark
from airflow_parallel_apply.pipeline.source.postgres.session import Session as SourceSession
from airflow_parallel_apply.pipeline.target.postgres.catalog.renamed_columns import giving_names
from airflow_parallel_apply.pipeline.target.postgres.redefine.applied_tables import present_columns, present_name
from airflow_parallel_apply.pipeline.target.postgres.redefine.child_columns import freeing_name
from airflow_parallel_apply.pipeline.target.postgres.redefine.found_columns import find_columns
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.versions import Versions
from airflow_parallel_apply.postgres.inherited_tables import Name, ancestors

_QUERY: Final = """
WITH RECURSIVE above (child, oid, depth) AS (
    SELECT t.oid, t.oid, 0 FROM unnest(%s::oid[]) AS t (oid)
    UNION ALL
    SELECT a.child, i.inhparent, a.depth + 1
    FROM above a
    JOIN pg_catalog.pg_class c ON c.oid = a.oid AND NOT c.relispartition
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.oid
)
SELECT DISTINCT above.depth, above.child::bigint, p.oid::bigint, n.nspname::text, p.relname::text,
    a.attnum, a.attname::text
FROM above
JOIN pg_catalog.pg_class p ON p.oid = above.oid
JOIN pg_catalog.pg_namespace n ON n.oid = p.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = p.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
JOIN pg_catalog.pg_attribute had ON had.attrelid = above.child AND had.attname = a.attname AND had.attinhcount > 0
WHERE above.depth > 0
ORDER BY above.depth DESC, 2, 3, a.attnum
"""
"""The uppermost tables first: what one of them gets, the others get with it."""


def left_above(
    log_url: str,
    target: Session,
    relations: Sequence[Relation],
    positions: Iterable[Position],
    *,
    source: SourceSession,
    followed: Collection[Name],
) -> tuple[str, ...]:
    """The statements by which the target's tables above these have the columns as the source's have them. Errors: the
    pipeline's.
    """
    copied = {relation.oid: (relation.schema, relation.table) for relation in relations}
    with source.errors("recopy"):
        found = source.catalog().execute(_QUERY, [[oid for oid in copied if oid is not None]]).fetchall()
    applied_seqno = low_watermark(positions)
    known = open_reader(log_url).state().relations
    applied = Versions(one for one in known if one.first_seqno is None or one.first_seqno <= applied_seqno)
    statements: list[sql.Composed] = []
    with target.transaction("recopy") as connection:
        pairs = ancestors(connection)
        for (_, child, oid, schema, table), columns in groupby(found, lambda row: row[:5]):
            above = applied.latest(schema, table, oid)
            if (schema, table) not in followed or (schema, table) in copied.values() or above is None:
                continue
            there = present_name(connection, target, above) or (schema, table)
            if (copied[child], there) in pairs:
                above = replace(above, oid=oid, schema=there[0], table=there[1])
                wanted = {number: name for *_, number, name in columns}
                statements += _renamings(connection, target, above, wanted, copied[child])
        return tuple(dict.fromkeys(statement.as_string(connection) for statement in statements))


def _renamings(
    connection: Connection, session: Session, above: Relation, wanted: Mapping[int, str], child: Name
) -> Iterator[sql.Composed]:
    """`above`: the definition that was applied last. `wanted`: the names of now, by the source's numbers."""
    there = find_columns(connection, above)
    logged = {column.number: column.name for column in above.columns if column.name in there}
    present = present_columns(connection, session, above)
    formers = {number: present.get(number, logged.get(number)) for number in wanted}
    renamed = {former: wanted[number] for number, former in formers.items() if former not in {None, wanted[number]}}
    in_child = find_columns(connection, replace(above, schema=child[0], table=child[1]))
    own = {name for name, found in in_child.items() if found.owner is None}
    for name in renamed.values():
        if name in own:
            # Of the copy, or of the past: at the source no child has one of its own.
            yield sql.SQL("ALTER TABLE {} DROP COLUMN {}").format(sql.Identifier(*child), sql.Identifier(name))
        if name not in there:
            statements, _ = freeing_name(connection, session, above, name, but=child)
            yield from statements
    yield from giving_names(connection, (above.schema, above.table), renamed)
