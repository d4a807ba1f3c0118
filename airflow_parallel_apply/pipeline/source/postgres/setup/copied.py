"""The rows that a first run's snapshot shows, read by COPY: `copied_rows`.

One session, whose locks are all taken at the start: a session that waits for an exclusive lock waits for us, and a lock
that we took later would wait for it. Rows are printed under the same settings as the slot's changes, so a copied row
and a captured one have the same texts.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.errors import SourceError, Unavailable
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.source.copied import CopiedAt, copied_part
from airflow_parallel_apply.pipeline.source.postgres.catalog.catalog import SourceTable, named_now
from airflow_parallel_apply.pipeline.source.postgres.catalog.own_rows import has_read, renamed
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import Registration
from airflow_parallel_apply.pipeline.source.postgres.session import Session, statement
from airflow_parallel_apply.pipeline.source.postgres.setup.moment import seen
from airflow_parallel_apply.pipeline.source.postgres.wire.copy_cells import copy_cells
from airflow_parallel_apply.pipeline.source.protocol import CopiedPart, Snapshot

_MOST_ROWS: Final = 16_384
_MOST_BYTES: Final = 4 * 2**20
"""The most that a transaction has, but for a larger row: some of them make an epoch."""
_TEXT_PER_BYTE: Final = 0.8
"""COPY text for a byte on disk, about."""


def copied_rows(
    session: Session,
    config: PipelineConfig,
    snapshot: Snapshot,
    tables: Mapping[int, SourceTable],
    relations: Sequence[Relation],
    *,
    first_seqno: int,
) -> Generator[CopiedPart, None, None]:
    """See `Preparing.rows`. `tables`: the followed ones, by oid. Errors: psycopg's own, too."""
    most_rows = min(_MOST_ROWS, config.epoch_max_changes)
    most_bytes = min(_MOST_BYTES, config.epoch_max_bytes)
    known = () if snapshot.look.registration is None else Registration.from_text(snapshot.look.registration).tables
    parts = {table.oid: [part.oid for part in table.partitions] for table in known}
    copied = [_table(tables, relation) for relation in relations]
    with _looking(session, config, snapshot) as connection:
        _hold(connection, copied)
        sizes = dict(connection.execute(statement("sizes"), {"oids": [relation.oid for relation in relations]}))
        weights = [max(int(sizes.get(relation.oid, 0) * _TEXT_PER_BYTE), 1) for relation in relations]
        at, seqno, total, before = CopiedAt(offset=snapshot.offset, time=_now(connection)), first_seqno, sum(weights), 0
        for number, (relation, table, weight) in enumerate(zip(relations, copied, weights, strict=True)):
            read = 0
            (now,) = named_now(connection, [table], op="copy")
            rows = now.rows_then(parts.get(table.oid, ()))
            for text, row_count in _pieces(connection, relation, rows, most_rows=most_rows, most_bytes=most_bytes):
                read += len(text)
                yield copied_part(
                    relation,
                    copy_cells(text, row_count, len(relation.columns)),
                    row_count,
                    seqno=seqno,
                    at=at,
                    tables=number,
                    fraction=(before + min(read, weight)) / total,
                )
                seqno += 1
            # The lock is of before, and says nothing of this query; but none of its own could be waited for.
            if named_now(connection, [table], op="copy") != [now]:
                raise renamed([table.name], op="copy")
            before += weight


@contextmanager
def _looking(session: Session, config: PipelineConfig, snapshot: Snapshot) -> Iterator[psycopg.Connection[Any]]:
    try:
        with seen(session, snapshot.name) as connection:
            yield connection
    except (psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue) as error:
        raise Unavailable(
            "the copy was cut off: the source no longer knows its snapshot",
            op="copy",
            pipeline=config.pipeline,
            hint="The next try begins anew by itself.",
        ) from error


def _table(tables: Mapping[int, SourceTable], relation: Relation) -> SourceTable:
    found = tables.get(relation.oid or 0)
    if found is None:
        raise SourceError(f"table {relation.name} is not among those that are followed", op="copy", table=relation.name)
    return found


def _hold(connection: psycopg.Connection[Any], tables: Sequence[SourceTable]) -> None:
    if not tables:
        return
    now = named_now(connection, tables, op="copy")
    names = sql.SQL(", ").join(table.own_rows for table in now)
    connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names))
    if not has_read(connection, [table.oid for table in tables]):
        raise renamed([table.name for table in tables], op="copy")


def _now(connection: psycopg.Connection[Any]) -> datetime:
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    if row is None or not isinstance(row[0], datetime):
        raise SourceError("the source did not tell the time", op="copy")
    return row[0]


def _pieces(
    connection: psycopg.Connection[Any], relation: Relation, rows: sql.Composed, *, most_rows: int, most_bytes: int
) -> Iterator[tuple[bytes, int]]:
    """COPY text of whole rows, and how many they are."""
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in relation.columns)
    query = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(columns, rows)
    held: list[bytes | bytearray | memoryview] = []
    held_bytes = 0
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        for row in copy:
            held.append(row)
            held_bytes += len(row)
            if held_bytes >= most_bytes or len(held) >= most_rows:
                yield b"".join(held), len(held)
                held, held_bytes = [], 0
    if held:
        yield b"".join(held), len(held)
