"""The one writer of a log in a directory: `DirectoryLogWriter`.

Rows wait in memory until they would fill a segment, then go to files that nobody can see. A commit syncs their
names and publishes one manifest, whose exclusive create is the only step that other processes observe::

    append… ──▶ segment files (synced) ──▶ names synced ──▶ manifest n+1 ──▶ commit returns, the source may let go

A crash before the manifest leaves files that no manifest names; the next writer removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import takewhile

import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.beginning import as_published, with_first_rows
from airflow_parallel_apply.pipeline.log.compaction import choose_runs, merge
from airflow_parallel_apply.pipeline.log.directory import LogDirectory
from airflow_parallel_apply.pipeline.log.options import WriterOptions
from airflow_parallel_apply.pipeline.log.passing import last_seqno_below
from airflow_parallel_apply.pipeline.log.protocol import (
    LogIdentity,
    LogState,
    PassedOver,
    ResumePoint,
    Segment,
    WriterFenced,
)
from airflow_parallel_apply.pipeline.log.publication import Publication
from airflow_parallel_apply.pipeline.log.segment import UNLINKED, remove_segment
from airflow_parallel_apply.pipeline.log.unpublished import UnpublishedSegments
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Relation
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.model.sighting import Sighting, in_order, newer
from airflow_parallel_apply.pipeline.versions import Versions


@dataclass(slots=True, kw_only=True)
class _Pending:
    """Everything beside segments that the next commit makes durable."""

    relations: list[Relation] = field(default_factory=list)
    registration: str | None = None
    registered_offset: Offset = 0
    sightings: list[Sighting] = field(default_factory=list)
    released: tuple[Offset, ...] = ()
    adopted_server: str | None = None
    passed_over: tuple[PassedOver, ...] | None = None

    def is_news(self, state: LogState) -> bool:
        """True if it is worth a version of its own, without any segment."""
        return bool(
            self.relations
            or self.sightings
            or self.released
            or self.registration is not None
            or self.registered_offset not in (0, state.registered_offset)
            or self.adopted_server is not None
            or self.passed_over is not None
        )


class DirectoryLogWriter:
    """Implements `LogWriter`. `clock` answers in UTC."""

    def __init__(
        self,
        directory: LogDirectory,
        identity: LogIdentity,
        *,
        options: WriterOptions,
        clock: Callable[[], datetime],
    ) -> None:
        self._directory = directory
        self._identity = identity
        self._options = options
        self._publication = Publication(directory, options=options, clock=clock)
        self._unpublished = UnpublishedSegments(
            directory,
            self.state(),
            bucket_count=identity.bucket_count,
            options=options,
            next_name=self._publication.next_segment_name,
        )
        self._versions: Versions | None = None
        self._all_sightings: tuple[Sighting, ...] | None = None
        self._forget()

    def state(self) -> LogState:
        return self._publication.view.state

    def latest_relation(self, schema: str, table: str, oid: int | None = None) -> Relation | None:
        return self._known().latest(schema, table, oid)

    def latest_relations(self) -> tuple[Relation, ...]:
        return self._known().all_latest()

    def relation_id(self, relation: Relation) -> tuple[int, bool]:
        latest = self.latest_relation(relation.schema, relation.table, relation.oid)
        is_as_before = latest is not None and latest.is_as(relation)
        if latest is not None and is_as_before and latest.oid == relation.oid and not latest.lacks_numbers_of(relation):
            return latest.relation_id, False
        return self.define(relation), latest is not None and not is_as_before

    def define(self, relation: Relation) -> int:
        known = self._known()
        defined = replace(relation, relation_id=known.last_id + 1, first_seqno=None)
        self._pending.relations.append(defined)
        known.add(defined)
        return defined.relation_id

    def see(self, sightings: Iterable[Sighting]) -> None:
        found = newer(self.sightings(), sightings)
        if found:
            self._pending.sightings += found
            self._all_sightings = None

    def sightings(self) -> tuple[Sighting, ...]:
        if self._all_sightings is None:
            self._all_sightings = in_order((*self.state().sightings, *self._pending.sightings))
        return self._all_sightings

    def register(self, registration: str, registered_offset: Offset) -> None:
        state = self.state()
        self._pending.registration = registration if registration != state.registration else None
        self._pending.registered_offset = max(registered_offset, state.registered_offset)

    def append(self, rows: pa.RecordBatch, transactions: pa.RecordBatch) -> None:
        self._check_alive()
        rows = rows.select(UNLINKED.names)
        if self._pending.relations:
            self._pending.relations[:] = with_first_rows(self._pending.relations, rows)
            self._versions = None
        self._unpublished.append(rows, transactions)

    def commit(self, captured_offset: Offset, resume: ResumePoint | None = None) -> LogState:
        self._check_alive()
        state = self.state()
        if self._unpublished.open_seqno is not None:
            raise LogError("commit: a transaction has rows and no end", op="commit", seqno=self._unpublished.open_seqno)
        if captured_offset < state.captured_offset:
            raise LogError(
                f"commit: the source went back from offset {state.captured_offset} to {captured_offset}",
                op="commit",
                hint="The stream or the server was made anew: start a new log.",
            )
        self._unpublished.flush()
        pending, resume = self._pending, resume or state.resume
        is_moved = (captured_offset, resume) != (state.captured_offset, state.resume)
        added, removed = self._unpublished.hand_over()
        if added or is_moved or pending.is_news(state):
            published = self._publication.publish(
                added=added,
                removed=removed,
                relations=as_published(pending.relations),
                sightings=tuple(pending.sightings),
                captured_offset=captured_offset,
                registration=pending.registration,
                registered_offset=pending.registered_offset,
                passed_over=pending.passed_over,
                resume=resume,
                released=pending.released,
                adopted_server=pending.adopted_server,
            )
            if not published:
                for segment in added:
                    remove_segment(self._directory, segment.name)
                raise self._refuse()
            self._forget()
            self._compact()
        elif self._publication.was_overtaken():
            raise self._refuse()
        return self.state()

    def release(self, *offsets: Offset) -> None:
        self._pending.released = offsets

    def adopt(self, server: str) -> None:
        self._pending.adopted_server = server

    def pass_over(self, tables: Sequence[PassedOver], *, after_seqno: int) -> None:
        self._check_alive()
        if not self._unpublished.is_empty:
            raise LogError("pass over: there are rows that were appended and not committed", op="pass over")
        state = self.state()
        given = {(one.schema, one.table): one for one in tables}
        self._pending.passed_over = (
            *(one for one in state.passed_over if (one.schema, one.table) not in given),
            *given.values(),
        )
        # Below an offset that was a table's before, its rows were left out then.
        before = {(one.schema, one.table): one.below_offset for one in state.passed_over}
        moved = [one for name, one in given.items() if one.below_offset > before.get(name, 0)]
        if not moved:
            return
        kept = [segment for segment in state.segments if segment.last_seqno > after_seqno]
        through: dict[int, int] = {}
        for offset in sorted({one.below_offset for one in moved}):
            there = [one for one in moved if one.below_offset == offset]
            names, oids = {(one.schema, one.table) for one in there}, {one.oid for one in there} - {None}
            ids = (
                relation.relation_id
                for relation in state.relations
                if (relation.schema, relation.table) in names or relation.oid in oids
            )
            through |= dict.fromkeys(ids, last_seqno_below(self._directory, kept, offset))
        self._unpublished.leave_out(kept, through)

    def purge(self, through_seqno: int, *, older_than: datetime | None = None) -> tuple[Segment, ...]:
        self._check_alive()
        if not self._unpublished.is_empty:
            raise LogError("purge: there are rows that were appended and not committed", op="purge")
        doomed = tuple(
            takewhile(
                lambda segment: (
                    segment.last_seqno <= through_seqno
                    and (older_than is None or segment.last_commit_time < older_than)
                ),
                self.state().segments,
            )
        )
        names = tuple(segment.name for segment in doomed)
        if names and not self._publication.publish(
            added=(),
            removed=names,
            captured_offset=self.state().captured_offset,
            purged_time=doomed[-1].last_commit_time,
        ):
            raise self._refuse()
        self._forget_known()
        return doomed

    def empty(self) -> None:
        self._check_alive()
        if not self._unpublished.is_empty:
            raise LogError("empty: there are rows that were appended and not committed", op="commit")
        state = self.state()
        if state.last_seqno == NO_SEQNO:
            return
        if not self._publication.publish(
            added=(),
            removed=tuple(segment.name for segment in state.segments),
            captured_offset=state.captured_offset,
            is_empty=True,
        ):
            raise self._refuse()
        self._forget()

    def abandon(self) -> None:
        self._unpublished.remove_files()
        self._forget()

    def _known(self) -> Versions:
        if self._versions is None:
            self._versions = Versions((*self.state().relations, *self._pending.relations))
        return self._versions

    def _forget(self) -> None:
        self._unpublished.begin(self.state())
        self._pending = _Pending()
        self._forget_known()

    def _forget_known(self) -> None:
        self._versions = self._all_sightings = None

    def _check_alive(self) -> None:
        self._publication.check_alive()
        self._unpublished.check_alive()

    def _refuse(self) -> WriterFenced:
        self.abandon()
        return self._publication.refuse()

    def _compact(self) -> None:
        """Merge small segments in one more version. The commit is durable already: losing here loses nothing."""
        runs = choose_runs(self.state().segments, self._options)
        if runs:
            bucket_count, next_name = self._identity.bucket_count, self._publication.next_segment_name
            merged = tuple(merge(self._directory, run, next_name(), bucket_count=bucket_count) for run in runs)
            removed = tuple(segment.name for run in runs for segment in run)
            if not self._publication.publish(
                added=merged, removed=removed, captured_offset=self.state().captured_offset
            ):
                for segment in merged:
                    remove_segment(self._directory, segment.name)
                self._refuse()
                return
            self._forget_known()
        self._publication.sweep_if_due()
