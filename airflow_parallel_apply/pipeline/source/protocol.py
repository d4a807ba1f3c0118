"""A source: gives what it committed, in commit order, and lets go of what it may.

It keeps a place in its stream for the pipeline, and reads from there. It writes no log: `pipeline/capture` decides what
becomes durable, and when the source may let go (law 7). What a source needs to know of the log is passed to it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.pipeline.log.protocol import LogPlace, LogReader, LogState, ResumePoint
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding, listed
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.model.reference import Reference
from airflow_parallel_apply.pipeline.model.removal import Removal
from airflow_parallel_apply.pipeline.model.sighting import Sighting

OpenLog = Callable[[], LogReader | None]
"""Opens the log of a pipeline; None where there is none yet. Errors: `LogError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The stream that a source keeps for a pipeline. `place`: where the source is, for people; `server`, `database`:
    which one it is. `name`: of the pipeline's place in its stream. `selection`: of what says which tables are sent;
    empty for a source that has none. `tables`: those that are followed.

    `has_begun`: whether a first run came to its end: else it begins anew.
    """

    place: str
    server: str
    database: str
    name: str
    selection: str
    tables: tuple[str, ...]
    has_begun: bool
    warnings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A look at the followed tables in the catalog, as far as the log is to keep it. `registration` (None: none, or as
    the log has it) holds up to `registered_offset`; only the source reads it.
    """

    registration: str | None = None
    registered_offset: Offset = 0
    sightings: tuple[Sighting, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The source's rows where the stream of a first run begins: everything that committed below `offset` is in it,
    everything else comes through the stream. By its name other sessions see it, as long as the block that hands it out
    lasts; the followed tables keep their definition meanwhile. `log_id`: of the log to be. `made`: what was made, in
    sentences for the user.
    """

    name: str
    log_id: str
    offset: Offset
    relations: tuple[Relation, ...]
    look: Look = Look()
    made: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The place that a read has come to, between two transactions: everything that committed at or below `offset` was
    given.

    `resume` (None: as the log has it): where the next read begins. `is_last`: the read is over, and holds nothing of
    the source any more.
    """

    offset: Offset
    resume: ResumePoint | None = None
    is_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some rows of a read, and the transactions that end among them, as a log's writer takes them."""

    rows: pa.RecordBatch
    transactions: pa.RecordBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedPart(Part):
    """Rows of one table as a first run's snapshot shows them: one transaction of insertions, with `Mark.COPY`.

    `tables`: how many tables were read to their ends before it. `fraction`: of all tables' bytes, about, with it.
    """

    tables: int
    fraction: float


class PreparedElsewhere(Unavailable):
    """Another run has been preparing the stream for longer than is waited for: a first run that copies, perhaps."""


class SourceChanged(Unavailable):
    """The tables are not those any more that were checked: look at them again and begin anew."""

    @classmethod
    def in_first_run(cls, names: Iterable[str], *, place: str, pipeline: str) -> SourceChanged:
        """Name tables that changed between a first run's look at them and its stream."""
        return cls(
            f"tables of the source {place} were made, dropped or redefined while the first run began: "
            f"{listed(sorted(names))}",
            op="prepare",
            pipeline=pipeline,
            hint="The next try begins anew by itself; let migrations end first.",
        )


class Definitions(Protocol):
    """The definitions of tables that the log knows, and is told of while a read goes on: see `LogWriter`."""

    def latest_relation(self, schema: str, table: str, oid: int | None = None) -> Relation | None: ...

    def latest_relations(self) -> tuple[Relation, ...]: ...

    def relation_id(self, relation: Relation) -> tuple[int, bool]: ...

    def see(self, sightings: Iterable[Sighting]) -> None: ...

    def sightings(self) -> tuple[Sighting, ...]: ...


Keep = Callable[[Callable[[LogState], Look]], None]
"""Has the log keep a look at its state; returns once that is durable. Looks again if another capture was first."""


class Preparing(Protocol):
    """A run looks at what the source keeps for its pipeline, and makes what is missing. No other one does meanwhile."""

    def stream(self, log: OpenLog) -> Stream:
        """Look at what there is, with all that stands in the way as errors. Idempotent; changes nothing.

        Errors: `ConfigurationError` with every finding; `SourceError`, `LogError` where log and stream do not belong
        together, or changes are missing.
        """
        ...

    def begin(self, log_id: str) -> AbstractContextManager[Snapshot]:
        """Make the stream of a first run, for a log of this id, in place of whatever an earlier attempt left.

        Lists, describes and registers the tables under one hold, which lasts as long as the block. Inside it the rows
        are copied, and then the log begins at the snapshot's offset. On leaving it the source records that the stream
        has begun. If the block raises, the stream is removed, so that it holds back nothing in vain.

        Errors: `ConfigurationError`, `SourceChanged`, `Unavailable`.
        """
        ...

    def rows(
        self, snapshot: Snapshot, relations: Sequence[Relation], *, first_seqno: int
    ) -> Generator[CopiedPart, None, None]:
        """Read what the snapshot shows of these tables, each row once, inside the block of `begin`: whole transactions
        of bounded size, numbered from `first_seqno` on, which committed at the snapshot. `relations`: its own, with
        their ids in the log. Memory is bounded. Closing it early ends it.

        Errors: `Unavailable` where it was cut off, for good; `SourceError`, `ConfigurationError`.
        """
        ...

    def settle(self, log: LogState) -> Look:
        """Prove of a stream that has begun that the log gets all that happened to the tables; say what they are now.
        Errors: `SourceError` that names each table of which it may not.
        """
        ...

    def follow(self, log: LogState, keep: Keep) -> tuple[str, ...]:
        """Take tables into the stream that are new, without rows; says what was done, in sentences for the user.
        Errors: `ConfigurationError` for new tables with rows, and for those that are sent and no longer wanted.
        """
        ...


class Source(Protocol):
    """One instance for one thread; connects when first used.

    Errors: `Unavailable`, `SourceError`, `LogError`, `ConfigurationError`; nothing moved after any of them.
    """

    def findings(self, log: OpenLog) -> tuple[Finding, ...]:
        """Find what would stand in the way of the next run, and what should be known. Reads only, waits for nobody."""
        ...

    def relations(self) -> tuple[Relation, ...]:
        """The followed tables as the catalog describes them now (their `relation_id` is -1): what the target is
        checked against before anything starts.
        """
        ...

    def names(self) -> frozenset[str]:
        """The names of the followed tables, "schema.table", for less than their definitions."""
        ...

    def references(self) -> tuple[Reference, ...]:
        """The foreign keys that act, of whatever tables, as the catalog has them now."""
        ...

    def offset(self) -> Offset:
        """An offset at or above every transaction whose commit was acknowledged before the call."""
        ...

    def is_past(self, time: datetime) -> bool:
        """True if every transaction with an earlier commit time has committed, as far as the source's clock goes
        forward. Asks nothing of the stream. A later `offset` is then one at which the source was past that time.
        """
        ...

    def has_changes(self, log: LogPlace, registration: str | None) -> bool:
        """True if the source, released up to there, holds a followed change that the log has not, or a table that is to
        be followed and is not yet, or its tables are not as registered (None: not asked); cheap. `SourceError` where it
        lacks what the log has.
        """
        ...

    def preparing(self) -> AbstractContextManager[Preparing]:
        """Prepare alone: a second run waits, bounded. Errors: `PreparedElsewhere` after that."""
        ...

    def release(self, log: LogPlace) -> None:
        """Let go of what the log has, but for what the source needs to prove itself with. Does nothing where that is
        done already. `SourceError` where the source, or its place in the stream, lacks what the log has.
        """
        ...

    def reach(self, log: LogPlace, until: Offset) -> Offset:
        """The offset up to which to read so that everything up to another one is read. Errors: `Unavailable` where
        the source ends below it, or below what the log has, and may still come to that.
        """
        ...

    def look(self, log: LogState, through: Offset) -> Look:
        """Look at the tables before a read up to an offset. Errors: `SourceError` unless everything that happened to
        them is in the stream.
        """
        ...

    def read(
        self,
        log: LogState,
        look: Look,
        definitions: Definitions,
        *,
        through: Offset,
        max_changes: int,
        step_changes: int,
    ) -> Generator[Part | Reached, None, None]:
        """Read the next changes behind what the log has: about `max_changes`, at least one, whole transactions in
        commit order, numbered from the log's next seqno on. `Reached` behind each about `step_changes`, and at last.

        Lets go of nothing: whatever was not released is given again. It begins with what the log says of its end, and
        raises `SourceError`, before anything is given, where that is not what the source has there. Memory is bounded,
        however large a transaction is. Closing it early ends it.
        """
        ...

    def close(self) -> None: ...


class SourceConnector(Protocol):
    """Opens the sources of one scheme, and does what commands need beside runs. Made without arguments; each call has a
    session of its own. Errors: `Unavailable`, `ConfigurationError`.
    """

    def open(self, endpoint: Endpoint, config: PipelineConfig) -> Source:
        """A source for one thread; connects when first used."""
        ...

    def drop(self, endpoint: Endpoint, stream: str, *, force: bool) -> Removal:
        """Remove what the source keeps under a stream's name; `force`: although it is in use."""
        ...

    def drop_commands(self, stream: str) -> tuple[str, ...]:
        """The commands that do the same by hand."""
        ...

    def warnings(self, endpoint: Endpoint, stream: str, *, much_retained_bytes: int) -> tuple[Finding, ...]:
        """Find harm that a stream does to its source. `much_retained_bytes`: from here on, what the source keeps for
        it counts as much.
        """
        ...

    def followed(self, endpoint: Endpoint) -> dict[str, frozenset[str]]:
        """The tables that pipelines follow in a database, by the id of each one's log."""
        ...

    def show_offset(self, offset: Offset) -> str:
        """An offset in the source's own form."""
        ...

    def parse_offset(self, text: str) -> Offset:
        """Inverse of `show_offset`, of what a person typed. Errors: `ConfigurationError` that shows the form."""
        ...
