"""Partitions that came, went or were emptied in a way that the slot does not send: `partition_doubts`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.model.finding import listed
from airflow_parallel_apply.pipeline.source.postgres.catalog.own_rows import asked
from airflow_parallel_apply.pipeline.source.postgres.ddl.removals import GonePart, TableLink
from airflow_parallel_apply.pipeline.source.postgres.pending import Pending
from airflow_parallel_apply.pipeline.source.postgres.proof.doubt import Doubt
from airflow_parallel_apply.pipeline.source.postgres.proof.histories import Pair
from airflow_parallel_apply.pipeline.source.postgres.proof.observed import unborn
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import PARTITIONED, Partition, RegisteredTable
from airflow_parallel_apply.pipeline.source.postgres.proof.rewrites import has_older_row
from airflow_parallel_apply.pipeline.source.postgres.proof.truncations import truncated_alone, written
from airflow_parallel_apply.postgres.quoting import quoted

_TOLD_HINT: Final = (
    "A partition that is dropped or detached, not CONCURRENTLY, is followed without that if a superuser ran "
    "parallel-apply install-ddl-capture at the source before, and its bounds are numbers, times or UUIDs."
)


def partition_doubts(
    pending: Pending, changed: Sequence[Pair], gone: Mapping[int, GonePart], *, horizon: int | None
) -> Iterator[tuple[Doubt, RegisteredTable]]:
    """Find tables whose partitions are others, or have other files, or are not logged, with what was registered of
    them. `gone`: the partitions that the stream tells to be gone, with their rows. `horizon`: that of the registration.
    Errors: psycopg's own.
    """
    if not changed:
        return
    fresh = {
        part.oid: part
        for before, after in changed
        for part in after.partitions
        if (part.oid, part.parent, part.link) not in {(one.oid, one.parent, one.link) for one in before.partitions}
    }
    connection = pending.connection
    attached = unborn(connection, fresh.values())
    truncated = _truncated(pending, changed)
    emptied = _emptied(pending, changed, fresh, attached)
    for before, after in changed:
        detached = list(_detached(before, after, gone))
        told = [
            *detached,
            *(
                f"{part.name} was attached with rows"
                for part in _attached(after, attached)
                if _has_rows(connection, part)
            ),
            *(f"{part.name} may have lost rows" for part in after.partitions if part.oid in emptied - truncated),
            *(f"{part.name} was truncated" for part in before.partitions if part.oid in truncated),
            *(f"{part.name} was truncated" for part in after.partitions if part.oid in truncated & fresh.keys()),
            *(f"{part.name} is unlogged" for part in after.partitions if part.is_unlogged),
            *(
                f"{part.name} was rewritten, perhaps while it was unlogged"
                for part in _relogged(before, after)
                if part.oid not in truncated
                and not has_older_row(connection, part.oid, horizon=horizon, or_none=part.oid in fresh)
            ),
        ]
        if told:
            what = f"partitions of {after.name} changed in a way that the slot does not send: {listed(told)}"
            logged = [
                f"ALTER TABLE {quoted(part.schema, part.table)} SET LOGGED"
                for part in after.partitions
                if part.is_unlogged
            ]
            first = f"Run {'; '.join(logged)} at the source, then go on: " if logged else ""
            more = _TOLD_HINT if detached else ""
            yield Doubt(table=after.name, what=what, first=first, more=more), before


def told_gone(before: RegisteredTable, after: RegisteredTable, gone: Mapping[int, GonePart]) -> Iterator[Partition]:
    """Partitions of which the stream tells that they are `gone`, each as it was registered, from where all above it was
    as registered, too, if the rows of what went as a whole are known. Nothing would tell of a TRUNCATE of one that is
    not watched.
    """
    left = {part.oid: part for part in _left(before, after)}
    for part in () if _unwatched(before, after) else left.values():
        above = [part]
        while above[-1].parent in left:
            above.append(left[above[-1].parent])
        if all(_is_told(one, before, gone) for one in above) and (part.watched is not None or not part.filenode):
            whole = left.get(gone[part.oid].whole)
            if whole is not None and whole.bounds is not None and whole.bounds.rows:
                yield part


def _is_told(part: Partition, before: RegisteredTable, gone: Mapping[int, GonePart]) -> bool:
    told = gone.get(part.oid)
    return told is not None and told.link == TableLink(root=before.oid, parent=part.parent, link=part.link)


def _left(before: RegisteredTable, after: RegisteredTable) -> Iterator[Partition]:
    kept = {part.oid for part in after.partitions}
    return (part for part in before.partitions if part.oid not in kept)


def _detached(before: RegisteredTable, after: RegisteredTable, gone: Mapping[int, GonePart]) -> Iterator[str]:
    told = {part.oid for part in told_gone(before, after, gone)}
    for part in _left(before, after):
        if part.kind != PARTITIONED and part.oid not in told:
            yield f"{part.name} was detached or dropped"
    kept = {part.oid: part for part in after.partitions}
    for part in before.partitions:
        now = kept.get(part.oid)
        if now is not None and (now.parent, now.link) != (part.parent, part.link):
            yield f"{part.name} was detached and attached again"


def _relogged(before: RegisteredTable, after: RegisteredTable) -> Iterator[Partition]:
    """Those that have a new file, and that nothing kept from being unlogged for a while."""
    known = {part.oid: part for part in before.partitions}
    for part in after.partitions:
        if part.kind == PARTITIONED or part.is_unlogged:
            continue
        former = known.get(part.oid)
        if former is None:
            if part.filenode != part.oid:
                yield part
        elif former.filenode != part.filenode and (former.watched is None or former.watched != part.watched):
            yield part


def _attached(table: RegisteredTable, attached: Collection[int]) -> Iterator[Partition]:
    """Partitions for rows that came by an ATTACH, be it with a partitioned one above them."""
    parents = {part.oid: part.parent for part in table.partitions}
    for part in table.partitions:
        if part.kind == PARTITIONED:
            continue
        above = [part.oid]
        while above[-1] in parents:
            above.append(parents[above[-1]])
        if any(oid in attached for oid in above):
            yield part


def _emptied(
    pending: Pending, changed: Sequence[Pair], fresh: Collection[int], attached: Collection[int]
) -> frozenset[int]:
    """New partitions whose rows the slot sends and that may have lost some. A partition without rows may have lost them
    while it was detached or unlogged, or by a TRUNCATE; any partition may, if truncations were not reported all the
    time, because one in the transaction that created it leaves its file.
    """
    parts: dict[int, int] = {}
    for before, after in changed:
        brought = {part.oid for part in _attached(after, attached)}
        for part in after.partitions:
            if part.oid not in fresh or not part.filenode:
                continue
            is_as_made = part.oid not in brought and part.filenode == part.oid
            if _unwatched(before, after) or not (is_as_made or _has_rows(pending.connection, part)):
                parts[part.oid] = after.oid
    return written(pending, parts) if parts else frozenset()


def _unwatched(before: RegisteredTable, after: RegisteredTable) -> bool:
    """True if truncations of the table's partitions were told, and not all the time since."""
    return before.watched is not None and before.watched != after.watched


def _has_rows(connection: psycopg.Connection[Any], part: Partition) -> bool:
    """True, too, where that cannot be seen."""
    return asked(connection, part.oid, sql.SQL("SELECT EXISTS (SELECT FROM {table})")) is not False


def _truncated(pending: Pending, changed: Sequence[Pair]) -> frozenset[int]:
    """Partitions that were truncated alone. Where the slot cannot tell, all that have a new file."""
    if all(before.watched is not None and before.watched == after.watched for before, after in changed):
        with suppress(psycopg.errors.UndefinedObject):
            both = [table for pair in changed for table in pair]
            return truncated_alone(pending, both)
    files = {part.oid: part.filenode for before, _ in changed for part in before.partitions}
    return frozenset(
        part.oid
        for _, after in changed
        for part in after.partitions
        if files.get(part.oid, part.filenode) != part.filenode
    )
