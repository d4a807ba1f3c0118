"""A source: something that fills a log with what it committed, in commit order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.pipeline.log.protocol import LogPlace
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.model.removal import Removal


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStep:
    """The result of one step of `capture`, durable. `done`: everything at or below the asked offset is in the log."""

    captured_offset: Offset
    first_seqno: int | None
    last_seqno: int
    row_count: int
    transaction_count: int
    done: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The result of `prepare`: what there is, and what was created, in sentences for the user. `warnings`: findings
    that a run can live with.
    """

    log_id: str
    slot: str
    publication: str
    tables: tuple[str, ...]
    created: tuple[str, ...]
    warnings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A view of the source at the beginning of a new slot's stream. Other sessions see it by its name, as long as the
    call that hands it out lasts; meanwhile the followed tables keep their definitions. `log_id`: the id of the log to
    be.
    """

    name: str
    log_id: str


class SourceChanged(Unavailable):
    """The tables are not those any more that were checked: look at them again and begin anew."""


class Source(Protocol):
    """Errors: `Unavailable`, `SourceError`, `LogError`, `ConfigurationError`; nothing moved after any of them."""

    def prepare(
        self, copy: Callable[[Snapshot], None] | None = None, *, checked: Sequence[Relation] | None = None
    ) -> Prepared:
        """Check the source, create publication, slot and log on the first run; check that they still fit on others.

        `copy` is called after the slot and before the log, so on a first run only; nothing is captured unless it
        returns. When it raises the slot is gone, and the next call begins anew.

        `checked`: the definitions that the caller has compared with the target. A first run whose stream begins with
        others is a `SourceChanged`, before anything is copied.
        """
        ...

    def findings(self) -> tuple[Finding, ...]:
        """Find what would stand in the way of `prepare`, and what should be known; reads only."""
        ...

    def relations(self) -> tuple[Relation, ...]:
        """The followed tables as the catalog describes them now (their `relation_id` is -1): what the target is
        checked against before anything starts.
        """
        ...

    def offset(self) -> Offset:
        """An offset at or above every transaction whose commit was acknowledged before the call."""
        ...

    def is_past(self, time: datetime) -> bool:
        """True if every transaction with an earlier commit time has committed, as far as the source's clock goes
        forward. Asks nothing of the slot. At any `offset` that is read later, the source was past that time.
        """
        ...

    def has_changes(self, log: LogPlace) -> bool:
        """True if the source holds a followed change that the log lacks; cheap. `SourceError`, here and in `capture`,
        if the source lacks what the log has.
        """
        ...

    def capture(
        self, until_offset: Offset, *, max_changes: int, step_changes: int | None = None, cancelled: Callable[[], bool]
    ) -> Generator[CaptureStep, None, None]:
        """Read about `max_changes` of the next changes, at least one, whole transactions, into the log; then let the
        slot advance to what is durable. About `step_changes` (None: all that is read) become durable with each step.
        Call again until a step is `done`. A crash, an error or `close` at any line repeats, loses nothing, duplicates
        nothing.
        """
        ...

    def close(self) -> None: ...


class SourceConnector(Protocol):
    """Opens the sources of one scheme, and does what no run needs. Made without arguments; each call has a session of
    its own. Errors: `Unavailable`, `ConfigurationError`.
    """

    def open(self, endpoint: Endpoint, config: PipelineConfig) -> Source:
        """A source for one thread; connects when first used."""
        ...

    def stream(self, pipeline: str) -> str:
        """The name under which the source keeps the pipeline's place in its stream."""
        ...

    def drop(self, endpoint: Endpoint, pipeline: str, *, force: bool) -> Removal:
        """Remove what the source keeps for a pipeline; `force`: although it is in use."""
        ...

    def drop_commands(self, pipeline: str) -> tuple[str, ...]:
        """The commands that do the same by hand."""
        ...

    def warnings(self, endpoint: Endpoint, pipeline: str, *, much_wal_bytes: int) -> tuple[Finding, ...]:
        """Find harm that the pipeline's stream does to its source. `much_wal_bytes`: retained bytes that count as
        much.
        """
        ...

    def published(self, endpoint: Endpoint) -> dict[str, frozenset[str]]:
        """The tables that pipelines follow in a database, by the id of each one's log."""
        ...

    def show_offset(self, offset: Offset) -> str:
        """An offset in the source's own form."""
        ...

    def parse_offset(self, text: str) -> Offset:
        """Inverse of `show_offset`, of what a person typed. Errors: `ConfigurationError` that shows the form."""
        ...
