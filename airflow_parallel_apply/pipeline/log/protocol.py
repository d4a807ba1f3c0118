"""The log's protocol: durable, ordered, immutable segments; one writer; readers that see whole transactions.

Law 7: a segment and a manifest appear whole, by exclusive create, checksummed and synced, or not at all. A writer
that lost its place is refused by the exclusive create of the next manifest, before its caller releases the source.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.model.sighting import Sighting
from airflow_parallel_apply.service.address import ServiceAddress


class WriterFenced(LogError):
    """Another writer published first: open a new writer and begin anew behind what it wrote."""


KEY_ORDER_VERSION: Final = 1
"""Version of what `partition.key.key_order` returns. Under 0 the number of a time could depend on its batch; numbers of
different versions do not make neighbours of one key's rows. A segment that does not name its version has 0.
"""

LOG_FORMAT: Final = 2
"""Format that this version writes and reads. A log of format 1 does not name it, and has a row's values as a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogIdentity:
    """A log's identity: the stream of the source whose changes it holds. Written once, when the log is created.

    `server`, `database`, `stream`, `selection`: as the source's `Stream` names them (`name` there is `stream` here).
    """

    log_id: str
    server: str
    database: str
    stream: str
    selection: str
    bucket_count: int
    created: datetime
    format: int = LOG_FORMAT
    begins_empty: bool | None = None
    """True if all rows are in it: there were none when it began, or it begins with a copy. None in an older version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """A contiguous bucket range [first_bucket, last_bucket] of a segment, in file order."""

    first_bucket: int
    last_bucket: int
    row_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One immutable pair of files. A transaction larger than a segment has several, told apart by fragno ranges."""

    name: str
    first_seqno: int
    last_seqno: int
    first_fragno: int
    last_fragno: int
    row_count: int
    transaction_count: int
    byte_count: int
    """Size of the values, uncompressed."""
    file_bytes: int
    """Size of the row file."""
    checksum: str
    last_commit_time: datetime
    """The greatest commit time up to its end, as in `LogState`."""
    row_groups: tuple[RowGroup, ...]
    order_version: int = 0
    """Version of the rule by which the least recent of its rows got their `key_order`."""

    @property
    def is_cut(self) -> bool:
        """True if its first transaction began in the segment before it."""
        return self.first_fragno > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """A table that was copied anew: what commits below the offset is in the copy, and has no rows in the log. The
    target that holds the copy knows its `recopy_id`. `oid`: the table's, by which its changes are told under former
    names; None where an older version wrote it. `marked_offset`: where the source has a message that names the copy, by
    which it proves that it did not lose what was copied; 0 where it has none.
    """

    schema: str
    table: str
    below_offset: Offset
    recopy_id: str
    oid: int | None = None
    marked_offset: Offset = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The place from which the source is asked to send again: in front of the last commit that it sent. By sending that
    transaction again it proves that it still has what the log has, and has sent nothing else in its place.

    `offset`: where its commit begins. `xid`, `commit_time` (microseconds since 1970): what tells it from any other
    that may lie there; None where nothing was sent yet. `message_count`: how many messages it was sent as.
    """

    offset: Offset
    xid: int | None = None
    commit_time: int | None = None
    message_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """The place that a log has reached in its source: all that a look at the source asks of the log."""

    captured_offset: Offset
    resume: ResumePoint | None
    released: tuple[Offset, ...] = ()
    """Offsets to which the source was released for an upgrade: past the resume point, with nothing followed in between.
    It stands at one of them, or, before that release, in front of the resume point.
    """

    @property
    def release_offset(self) -> Offset:
        """The offset up to which the source may let go of what it sent."""
        return self.captured_offset if self.resume is None else self.resume.offset

    def resume_at(self, source_offset: Offset) -> ResumePoint | None:
        """The point at which a read begins, given where the source stands. At a released offset there is nothing to
        send again.
        """
        return ResumePoint(offset=source_offset) if source_offset in self.released else self.resume


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """A log's state as a reader sees it at once. `captured_offset`: everything committed at or below it is here."""

    last_seqno: int
    captured_offset: Offset
    last_commit_time: datetime | None
    segments: tuple[Segment, ...]
    relations: tuple[Relation, ...]
    """In the order of their ids."""
    purged_time: datetime | None = None
    """The greatest commit time of what was purged; None of a log that was never purged."""
    registration: str | None = None
    """The source's record of its tables, which only the source reads. None for a log that has none."""
    registered_offset: Offset = 0
    """Up to here the source is known to have been as `registration` says."""
    passed_over: tuple[PassedOver, ...] = ()
    """The last copy of each table that was copied anew."""
    sightings: tuple[Sighting, ...] = ()
    """In the order in which they were seen. Empty in a log of a version that kept none."""
    resume: ResumePoint | None = None
    """None where the last version was written by software that released the source at the captured offset."""
    released: tuple[Offset, ...] = ()
    """As in `LogPlace`."""
    adopted_server: str | None = None
    """The server that took the place of the one in the identity; None of a log that always had that one."""

    @property
    def place(self) -> LogPlace:
        """The place that it has reached in its source."""
        return LogPlace(captured_offset=self.captured_offset, resume=self.resume, released=self.released)

    @property
    def purged_seqno(self) -> int:
        """Rows at and below it are not here any more; NO_SEQNO of a log that was never purged."""
        if not self.segments:
            return self.last_seqno
        first = self.segments[0]
        # A transaction that began in a segment which is gone is gone, though its last rows are here.
        return first.first_seqno if first.is_cut else first.first_seqno - 1

    def require_kept(self, after_seqno: int) -> None:
        """`LogError` where what follows a seqno was purged."""
        if after_seqno < self.purged_seqno:
            raise LogError(
                f"seqnos {after_seqno + 1} to {self.purged_seqno} were purged from the log",
                seqno=after_seqno,
                hint="A pipeline that stands before them cannot go on with this log: drop it and start it anew.",
            )

    def relation(self, relation_id: int) -> Relation:
        """By id. `LogError` for an id that no manifest names."""
        place = bisect_left(self.relations, relation_id, key=lambda relation: relation.relation_id)
        if place < len(self.relations) and self.relations[place].relation_id == relation_id:
            return self.relations[place]
        raise LogError(f"no manifest defines relation {relation_id}", hint="The log was not written by one writer.")


class RowReader(Protocol):
    """Reads what a log says of some seqnos."""

    def state(self) -> LogState:
        """The newest state; cheap when nothing changed."""
        ...

    def transactions(self, after_seqno: int, last_seqno: int) -> pa.Table:
        """`TRANSACTIONS` rows in seqno order. `LogError`, here and where rows are read, for what was purged."""
        ...

    def rows(
        self,
        after_seqno: int,
        last_seqno: int,
        *,
        columns: Sequence[str] | None = None,
        in_order: bool = False,
        after_fragno: int | None = None,
        buckets: tuple[int, int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """`ROWS` of the seqnos; with `in_order` by (seqno, fragno), in bounded memory even inside one transaction.
        `after_fragno` skips the fragnos at or below it (one seqno). `buckets`: the first and the last one that are
        wanted; row groups of others are not read. `columns` may name `schema.WIDTH`, too.
        """
        ...


class LogReader(RowReader, Protocol):
    """Reads a log. Opening checks the identity, manifests and their checksums; a torn tail is dropped."""

    @property
    def identity(self) -> LogIdentity: ...

    @property
    def root(self) -> Path | None:
        """The log's directory, in which a store may keep what it makes from the log; None where a router serves it."""
        ...

    @property
    def router(self) -> ServiceAddress | None:
        """The router that serves it, its path the log's name there; None of a directory. Holds a token."""
        ...

    def verify(self, segments: Sequence[Segment]) -> None:
        """Compare the files' checksums; `LogError` naming the corrupt one. A segment is verified once a process,
        and by the processes of one host about once an hour.
        """
        ...

    def row_files(self, after_seqno: int, last_seqno: int) -> tuple[str, ...]:
        """Absolute paths of the row files that hold seqnos of (after_seqno, last_seqno]: what Spark scans. A router's
        log has none here: `LogError`.
        """
        ...


class LogWriter(Protocol):
    """The one writer of a log. Not thread-safe."""

    def state(self) -> LogState:
        """The committed state; the next seqno is one above its last."""
        ...

    def latest_relation(self, schema: str, table: str, oid: int | None = None) -> Relation | None:
        """The last definition of a table, committed or not: of that oid, or else of that name; None of a table that the
        log has not seen.
        """
        ...

    def latest_relations(self) -> tuple[Relation, ...]:
        """The last definition of each table that has an oid, committed or not."""
        ...

    def relation_id(self, relation: Relation) -> tuple[int, bool]:
        """The id of this definition (its own `relation_id` is ignored), made if it is new, and whether it is
        new and the same table had another definition before. A definition that comes back after another one is new
        again. Durable with the next commit.
        """
        ...

    def register(self, registration: str, registered_offset: Offset) -> None:
        """Replace the source's registration. Durable with the next commit, which it alone is reason enough for."""
        ...

    def define(self, relation: Relation) -> int:
        """As `relation_id`, of a table that begins anew: a version of its own, though the last one may be alike."""
        ...

    def see(self, sightings: Iterable[Sighting]) -> None:
        """Keep what differs from the last sighting of its table. Durable with the next commit."""
        ...

    def sightings(self) -> tuple[Sighting, ...]:
        """Those that were committed, and those that wait for it."""
        ...

    def append(self, rows: pa.RecordBatch, transactions: pa.RecordBatch) -> None:
        """Add rows, and the transactions that *end* among them; the links are for the writer to fill.

        seqnos are the writer's next ones, gapless. Rows of one transaction may come in several calls. Spills to
        segment files as they fill, so memory stays bounded.
        """
        ...

    def commit(self, captured_offset: Offset, resume: ResumePoint | None = None) -> LogState:
        """Sync what was appended and publish it with one manifest; `resume` None keeps the last one.
        `WriterFenced` when another writer was faster: then nothing of ours is visible, and the source keeps its place.
        """
        ...

    def release(self, *offsets: Offset) -> None:
        """The source may stand at these, past the resume point, and nowhere else: see `LogPlace`. Holds until a commit
        names another resume point. Durable with the next commit, before the source lets go.
        """
        ...

    def adopt(self, server: str) -> None:
        """Make this the log of that server. Durable with the next commit."""
        ...

    def pass_over(self, tables: Sequence[PassedOver], *, after_seqno: int) -> None:
        """Leave the tables' rows out that lie above a seqno and committed below their offset, and have capture leave
        out those that come. Published by the next commit; nothing else may have been appended. `after_seqno`: the log's
        only reader has applied everything up to it.
        """
        ...

    def purge(self, through_seqno: int, *, older_than: datetime | None = None) -> tuple[Segment, ...]:
        """Forget the leading segments whose transactions all lie at or below a seqno, and were all committed before a
        time; says which. One manifest makes it so, and law 7's grace holds for their files. `WriterFenced` as `commit`.

        The caller has asked every reader, and knows that their positions are on disk.
        """
        ...

    def empty(self) -> None:
        """Make it a log without a transaction again, by one manifest: of a first run that did not come to its end, so
        that nobody has read it. `WriterFenced` as `commit`.
        """
        ...

    def abandon(self) -> None:
        """Forget what was appended and remove its files."""
        ...
