"""The copy's protocol: its parts, and the `Copier` that carries their rows, as a `Stage` does for the lanes.

Law: a part's rows and its mark commit in one transaction of the target, or not at all; a part that bears a mark is not
copied again, whatever Spark retries or runs twice; and a mark is refused once another copy began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.copy_progress import CopyProgress
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.source.protocol import Snapshot
from airflow_parallel_apply.pipeline.target.protocol import Recopied

NO_GENERATION: Final = 0
"""The generation of a pipeline that no run has opened yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOrder:
    """The copy whose parts are copied. Crosses process borders; carries no secret. `snapshot`: of the source, as
    exported; `offset`: everything that committed below is in it.
    """

    pipeline: str
    copy_id: str
    snapshot: str
    offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPart:
    """Rows of one table of the source: those in its blocks from `first_block` up to, without, `end_block` (None: to the
    end). No `first_block`: the table is no heap, and comes whole. Tables are (schema, name).

    `table`: where the rows lie, which is a partition's leaf; `target`: where they go; `relation`: the source's
    definition of that. `weight`: its share, in bytes.
    """

    table: tuple[str, str]
    target: tuple[str, str]
    target_oid: int
    relation: Relation
    first_block: int | None
    end_block: int | None
    weight: int

    def to_json(self) -> dict[str, Any]:
        """For the record in the target."""
        return {**asdict(self), "relation": self.relation.to_json()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> CopyPart:
        """Inverse of `to_json`."""
        plain: dict[str, Any] = {
            name: tuple(found) if isinstance(found, list) else found for name, found in value.items()
        }
        return cls(**plain | {"relation": Relation.from_json(value["relation"])})


class Copier(Protocol):
    """Copies parts in parallel. Thread-safe."""

    def begin(self) -> None:
        """A copy is about to come: start what takes time. Returns at once, and raises nothing."""
        ...

    def copy(self, order: CopyOrder, parts: Sequence[int]) -> None:
        """Try each of these parts, by their numbers in the record, the first ones first; the record says what was done.

        Errors: `RetryableError` when some may succeed at another try; `TargetError`, `ConfigurationError` when none
        will; `OwnershipLost` when it was cancelled, or another copy began.
        """
        ...

    def cancel(self) -> None:
        """Interrupt it; `copy` then raises. Callable from any thread."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RecopyProgress:
    """The progress of a copy of tables anew. `fraction`: of the tables' bytes on the source's disk, about."""

    table: str
    rows: int
    text_bytes: int
    fraction: float

    def __str__(self) -> str:
        return f"{self.table}: {self.rows:,} rows, {self.text_bytes / 1e6:,.1f} MB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """The means by which `prepare` copies in a first run with start=copy: who copies, who hears of it, and who stops
    it.
    """

    copier: Copier
    report: Callable[[CopyProgress], None]
    cancelled: Callable[[], bool]


class FirstCopy(AbstractContextManager["FirstCopy"], Protocol):
    """One attempt at a first run's copy; while it is open no other one of this pipeline begins."""

    created: list[str]
    """Sentences for the user that say what was made."""

    def rehearse(self) -> tuple[Finding, ...]:
        """Refuse by name, before anything is made: tables that are missing or have rows of somebody else's, or that
        could not be made or followed. Makes all of it, and rolls back. Returns what should be known all the same.
        """
        ...

    def run(self, snapshot: Snapshot) -> None:
        """Copy what the snapshot shows. Errors: `Unavailable` when it was cut off, for good: a new one is needed."""
        ...

    def require_finished(self, log_id: str) -> None:
        """That the target holds the copy which this log goes on from. Errors: `ConfigurationError`."""
        ...

    def register(self) -> None:
        """Once the target knows the pipeline: the stream has begun, and nothing that the copy made is its to drop."""
        ...


class CopyConnector(Protocol):
    """Copies rows between the source and the target of one pair of schemes. Made without arguments."""

    def first_copy(
        self,
        config: PipelineConfig,
        source: Endpoint,
        target: Endpoint,
        relations: Sequence[Relation],
        copying: Copying,
    ) -> FirstCopy:
        """One attempt at a first run's copy."""
        ...

    def recopy(
        self,
        config: PipelineConfig,
        source: Endpoint,
        target: Endpoint,
        names: Sequence[tuple[str, str]],
        *,
        report: Callable[[RecopyProgress], None],
    ) -> tuple[Recopied, ...]:
        """Replace tables' rows at the target by the source's of one moment, while the pipeline stays what it is.

        Errors: `LeaseBusy` while a run owns the pipeline; `ConfigurationError`, `TargetError` for what is in the way,
        before anything is changed; those of both sides and of the log.
        """
        ...

    def load_part(self, source: Endpoint, target: Endpoint, order: CopyOrder, number: int) -> None:
        """Copy a part of the record, unless that is done; runs in a Spark task. Errors: as `Copier.copy`;
        `OwnershipLost` also when a twin took over.
        """
        ...

    def findings(
        self, config: PipelineConfig, source: Endpoint, target: Endpoint, relations: Sequence[Relation]
    ) -> tuple[Finding, ...]:
        """Find what keeps a copy from being made at the target. Reads only."""
        ...

    def progress(self, target: Endpoint, pipeline: str) -> CopyProgress | None:
        """The progress of the pipeline's last copy; None if there was no copy, or there is no pipeline."""
        ...

    def is_copying(self, target: Endpoint, pipeline: str) -> bool:
        """True if a live session copies for the pipeline."""
        ...
