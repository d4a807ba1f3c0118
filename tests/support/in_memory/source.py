"""A source in memory: a database of one table that commits, and the pipeline's place in its stream.

What it let go of is gone, so that a log which is not complete by then is seen. An offset is a file's number and a
position in it, as a binlog has them; people see `file.position`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import ConfigurationError, SourceError, Unavailable
from airflow_parallel_apply.pipeline.log.beginning import holds_nothing_captured
from airflow_parallel_apply.pipeline.log.protocol import LogPlace, LogState, ResumePoint
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.model.reference import Reference
from airflow_parallel_apply.pipeline.model.removal import Removal
from airflow_parallel_apply.pipeline.source.protocol import (
    CopiedPart,
    Definitions,
    Keep,
    Look,
    OpenLog,
    Part,
    PreparedElsewhere,
    Reached,
    Snapshot,
    Stream,
)
from tests.support.mines import Died
from tests.support.written_log import Change, Committed, T, batches

SCHEME: Final = "memory"
_FILE_BYTES: Final = 1000
_CHANGE_BYTES: Final = 40
_PATIENCE_SECONDS: Final = 0.2
_BATCH_CHANGES: Final = 3
"""A part of a read, so that a transaction may have several."""
_COPIED_ROWS: Final = 2


@dataclass(frozen=True)
class Kept:
    """A transaction as its database keeps it, from `begin` up to `end`."""

    number: int
    begin: int
    end: int
    time: datetime
    changes: tuple[Change, ...]


@dataclass
class Place:
    """A pipeline's place in the stream: everything below `released` is gone."""

    log_id: str
    released: int
    has_begun: bool = False


@dataclass
class SourceData:
    """The database: the part that outlives its sessions."""

    rows: dict[int, str | None] = field(default_factory=dict)
    end: int = 1 << 32
    kept: list[Kept] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)
    relation: Relation = T
    server: str = "memory1"
    held: threading.Lock = field(default_factory=threading.Lock)
    committed: int = 0

    def commit(self, *changes: Change) -> None:
        """One transaction."""
        for change in changes:
            match change.operation:
                case "T":
                    self.rows.clear()
                case "D":
                    del self.rows[change.id]
                case _:
                    self.rows[change.id] = change.v
        begin, self.end = self.end, _after(self.end, len(changes))
        self.committed += 1
        if self.places:
            self.kept.append(Kept(self.committed, begin, self.end, datetime.now(UTC), changes))

    def forget(self) -> None:
        """Forget what no place needs any more."""
        lowest = min((place.released for place in self.places.values()), default=self.end)
        self.kept = [one for one in self.kept if one.end > lowest]


class MemorySource:
    """Implements `Source` over a `SourceData`."""

    def __init__(self, data: SourceData, config: PipelineConfig) -> None:
        self._data = data
        self._config = config

    def findings(self, log: OpenLog) -> tuple[Finding, ...]:
        return ()

    def relations(self) -> tuple[Relation, ...]:
        return (replace(self._data.relation, relation_id=-1),)

    def names(self) -> frozenset[str]:
        return frozenset({self._data.relation.name})

    def references(self) -> tuple[Reference, ...]:
        return ()

    def offset(self) -> int:
        return self._data.end

    def is_past(self, time: datetime) -> bool:
        return datetime.now(UTC) > time

    def has_changes(self, log: LogPlace, registration: str | None) -> bool:
        return any(one.end > log.captured_offset for one in self._data.kept)

    @contextmanager
    def preparing(self) -> Iterator[MemoryPreparing]:
        if not self._data.held.acquire(timeout=_PATIENCE_SECONDS):
            raise PreparedElsewhere("another run prepares", op="prepare")
        try:
            yield MemoryPreparing(self._data, self._config)
        finally:
            self._data.held.release()

    def release(self, log: LogPlace) -> None:
        place = self._place()
        if place.released > log.release_offset:
            raise SourceError(f"the place stands at {show(place.released)}: changes are missing", op="capture")
        if self._data.end < log.release_offset:
            raise SourceError(f"the database ends at {show(self._data.end)}: it lacks what the log has", op="capture")
        place.released = log.release_offset
        self._data.forget()

    def reach(self, log: LogPlace, until: int) -> int:
        if self._data.end < until:
            raise Unavailable(f"the database ends below {show(until)}", op="capture")
        return max(until, log.captured_offset)

    def look(self, log: LogState, through: int) -> Look:
        return Look(registration=self._data.relation.name, registered_offset=through)

    def read(
        self,
        log: LogState,
        look: Look,
        definitions: Definitions,
        *,
        through: int,
        max_changes: int,
        step_changes: int,
    ) -> Generator[Part | Reached, None, None]:
        self._require_last(log.place)
        waiting = [one for one in self._data.kept if log.captured_offset < one.end <= through]
        relation_id, _ = definitions.relation_id(self._data.relation)
        seqno, read, stepped, resume = log.last_seqno + 1, 0, 0, None
        for one in waiting:
            if read >= max_changes:
                yield Reached(offset=waiting[waiting.index(one) - 1].end, resume=resume, is_last=True)
                return
            if stepped >= step_changes:
                yield Reached(offset=waiting[waiting.index(one) - 1].end, resume=resume)
                stepped = 0
            yield from self._parts(one, seqno, relation_id)
            seqno, read, stepped = seqno + 1, read + len(one.changes), stepped + len(one.changes)
            resume = ResumePoint(offset=one.begin, xid=one.number)
        yield Reached(offset=through, resume=resume, is_last=True)

    def close(self) -> None:
        """Holds nothing."""

    def _parts(self, one: Kept, seqno: int, relation_id: int) -> Iterator[Part]:
        committed = Committed(xid=one.number, offset=one.begin, end_offset=one.end, time=one.time, changes=one.changes)
        rows, transactions = batches([committed], first_seqno=seqno, relation_id=relation_id)
        for first in range(0, rows.num_rows, _BATCH_CHANGES):
            is_end = first + _BATCH_CHANGES >= rows.num_rows
            yield Part(rows=rows.slice(first, _BATCH_CHANGES), transactions=transactions[0 if is_end else 1 :])

    def _require_last(self, log: LogPlace) -> None:
        """That it still has the last transaction that the log has."""
        resume = log.resume
        if resume is None or resume.xid is None:
            return
        if not any((one.begin, one.number) == (resume.offset, resume.xid) for one in self._data.kept):
            raise SourceError(f"at {show(resume.offset)} is another transaction than the log has", op="capture")

    def _place(self) -> Place:
        place = self._data.places.get(self._config.stream)
        if place is None:
            raise SourceError("the pipeline has no place in the stream: changes are missing", op="capture")
        return place


class MemoryPreparing:
    """Implements `Preparing`."""

    def __init__(self, data: SourceData, config: PipelineConfig) -> None:
        self._data = data
        self._config = config
        self._shown: dict[str, dict[int, str | None]] = {}
        """The rows that each snapshot shows."""

    def stream(self, log: OpenLog) -> Stream:
        place, found = self._data.places.get(self._config.stream), log()
        has_begun = place is not None and place.has_begun
        if place is not None and has_begun and (found is None or found.identity.log_id != place.log_id):
            raise SourceError(f"the stream feeds log {place.log_id}, which is not there", op="prepare")
        if not has_begun and found is not None and not holds_nothing_captured(found):
            raise SourceError("the log has a history, and the stream is gone: changes are missing", op="prepare")
        return Stream(
            place="memory",
            server=self._data.server,
            database="d",
            name=self._config.stream,
            selection="",
            tables=(self._data.relation.name,),
            has_begun=has_begun,
        )

    @contextmanager
    def begin(self, log_id: str) -> Iterator[Snapshot]:
        data, name = self._data, self._config.stream
        if self._config.start is Start.EMPTY and data.rows:
            raise ConfigurationError("the table has rows, and start=empty takes none", op="prepare")
        data.places[name] = Place(log_id=log_id, released=data.end)
        shown = f"snapshot at {show(data.end)}"
        self._shown[shown] = dict(data.rows)
        try:
            yield Snapshot(
                name=shown,
                log_id=log_id,
                offset=data.end,
                relations=(replace(data.relation, relation_id=-1),),
                made=(f"Began at {show(data.end)}.",),
            )
        except Died:
            raise
        except BaseException:
            data.places.pop(name, None)
            raise
        data.places[name].has_begun = True

    def rows(
        self, snapshot: Snapshot, relations: Sequence[Relation], *, first_seqno: int
    ) -> Generator[CopiedPart, None, None]:
        (relation,), rows = relations, list(self._shown[snapshot.name].items())
        for number, first in enumerate(range(0, len(rows), _COPIED_ROWS)):
            changes = tuple(Change("I", key, value) for key, value in rows[first : first + _COPIED_ROWS])
            copied = Committed(
                xid=0,
                offset=snapshot.offset,
                end_offset=snapshot.offset,
                time=datetime.now(UTC),
                changes=changes,
                is_copied=True,
            )
            made, transactions = batches([copied], first_seqno=first_seqno + number, relation_id=relation.relation_id)
            fraction = (first + len(changes)) / len(rows)
            yield CopiedPart(rows=made, transactions=transactions, tables=0, fraction=fraction)

    def settle(self, log: LogState) -> Look:
        return Look(registration=self._data.relation.name)

    def follow(self, log: LogState, keep: Keep) -> tuple[str, ...]:
        return ()


class MemoryConnector:
    """Implements `SourceConnector` for the databases of this process, by the name in their URL."""

    databases: Final[dict[str, SourceData]] = {}

    def open(self, endpoint: Endpoint, config: PipelineConfig) -> MemorySource:
        return MemorySource(self.databases[endpoint.url], config)

    def drop(self, endpoint: Endpoint, stream: str, *, force: bool) -> Removal:
        gone = self.databases[endpoint.url].places.pop(stream, None)
        return Removal() if gone is None else Removal(done=(f"dropped the place {stream}",))

    def drop_commands(self, stream: str) -> tuple[str, ...]:
        return (f"forget {stream}",)

    def warnings(self, endpoint: Endpoint, stream: str, *, much_retained_bytes: int) -> tuple[Finding, ...]:
        return ()

    def followed(self, endpoint: Endpoint) -> dict[str, frozenset[str]]:
        data = self.databases[endpoint.url]
        return {place.log_id: frozenset({data.relation.name}) for place in data.places.values()}

    def show_offset(self, offset: int) -> str:
        return show(offset)

    def parse_offset(self, text: str) -> int:
        found = re.fullmatch(r"(\d+)\.(\d+)", text.strip())
        if found is None:
            raise ConfigurationError(f"{text!r} is no offset", hint="Give file.position.")
        return int(found[1]) << 32 | int(found[2])


def show(offset: int) -> str:
    """File and position, for people."""
    return f"{offset >> 32}.{offset & 0xFFFFFFFF}"


def _after(offset: int, change_count: int) -> int:
    """Behind a transaction of so many changes; a full file is followed by the next one."""
    moved = offset + _CHANGE_BYTES * (change_count + 1)
    return moved if moved & 0xFFFFFFFF < _FILE_BYTES else (offset >> 32) + 1 << 32
