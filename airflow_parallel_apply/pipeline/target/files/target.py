"""A directory of files as a target: a commit is the exclusive create of the next manifest, with all positions.

| killed | leaves | and |
|---|---|---|
| while data is written | files that no manifest names | the unit is staged again; `own` sweeps them when they are old |
| before the manifest | the same | |
| after it | the commit | whoever repeats it finds the positions at the unit's end |
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import tenacity

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.encode.columns.rows import row_typing
from airflow_parallel_apply.pipeline.encode.files.dataset import GRACE, Dataset, FilesLost
from airflow_parallel_apply.pipeline.encode.files.manifest import DataFile, FileManifest
from airflow_parallel_apply.pipeline.encode.files.schemas import schema_of
from airflow_parallel_apply.pipeline.errors import (
    ConfigurationError,
    OwnershipLost,
    PlanError,
    StagingLost,
    Unavailable,
)
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Relation
from airflow_parallel_apply.pipeline.model.epoch import GroupPart, Unit
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.model.position import Position, all_equal, low_watermark
from airflow_parallel_apply.pipeline.model.removal import Removal
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.expectation import Expectation
from airflow_parallel_apply.pipeline.target.files.address import FilesAddress
from airflow_parallel_apply.pipeline.target.files.check import directory_findings, has_files, identity_of
from airflow_parallel_apply.pipeline.target.files.committing import UnitFiles
from airflow_parallel_apply.pipeline.target.files.head import Head, part_name
from airflow_parallel_apply.pipeline.target.lost_positions import positions_lost
from airflow_parallel_apply.pipeline.target.protocol import Pending, Recopied, TargetIdentity
from airflow_parallel_apply.pipeline.target.relations import Relations
from airflow_parallel_apply.pipeline.target.steps import Capability, Step

_TRIES: Final = 1000
"""Each lost race is another writer's commit, so some writer goes on."""

_PAUSE: Final = tenacity.wait_random_exponential(multiplier=0.005, max=1)
"""Longer after each loss, for a random while: many lanes write the manifests of one directory."""


class FilesTarget:
    """See `Target`. A directory is one pipeline's."""

    def __init__(
        self,
        address: FilesAddress,
        pipeline: str,
        *,
        relations: Relations,
        ledger: Callable[[], str] | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._address = address
        self._pipeline = pipeline
        self._relations = relations
        self._ledger = ledger
        self._clock = clock
        self._dataset = Dataset(address.place(), clock=clock)
        self._known: FileManifest | None = None

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.TRUNCATE, Capability.REPLAY, Capability.DEFINE})

    # --- set-up ---

    def is_installed(self) -> bool:
        return bool(self._head().pipeline)

    def migrate(self) -> tuple[str, ...]:
        return ()

    def identity(self) -> TargetIdentity:
        return identity_of(self._address)

    def drop(self, *, force: bool) -> Removal:
        if not self._head().pipeline:
            return Removal()
        self._advance("drop", lambda head: Head() if head.pipeline else None)
        place = self._address.url
        return Removal(done=(f"removed the positions in {place}; its files stay, with the manifests that name them",))

    def findings(self, expected: Expectation) -> tuple[Finding, ...]:
        return directory_findings(self._dataset, self._address, self._pipeline, expected)

    def branch_findings(self, branches: int) -> tuple[Finding, ...]:
        return ()

    def colocation(self, tables: TablePatterns) -> tuple[tuple[str, ...], ...]:
        return ()

    def log_id(self) -> str:
        return self._head().log_id

    def recopied(self) -> tuple[Recopied, ...]:
        return ()

    # --- positions ---

    def positions(self, *, durable: bool = False) -> tuple[Position, ...]:
        return self._head().positions

    def pending(self) -> Pending:
        return Pending(branches=0, decided=None)

    def held_up(self) -> tuple[Finding, ...]:
        return ()

    def generation(self) -> int:
        return self._head().generation

    def own(self, generation: int) -> None:
        """Once in `GRACE` it removes files, too, that no manifest names and that are too old to be anybody's."""
        self._dataset.require_whole()
        now, is_due = self._clock(), False

        def owned(head: Head) -> Head | None:
            nonlocal is_due
            if not head.pipeline or head.generation > generation:
                return None
            self._require_ledger(head)
            is_due = not head.swept or now - datetime.fromisoformat(head.swept) >= GRACE
            positions = tuple(replace(at, generation=generation) for at in head.positions)
            found = replace(head, generation=generation, positions=positions, parts={})
            found = replace(found, swept=now.isoformat()) if is_due else found
            return found if found != head else None

        self._advance("own", owned)
        if is_due:
            self._dataset.sweep()

    def routing_digest(self) -> str:
        head = self._head()
        if head.pipeline:
            self._require_ledger(head)
        return head.routing_digest

    def lay_out(self, *, log_id: str, routing: Routing, generation: int) -> int:
        self._dataset.require_whole()

        def laid_out(head: Head) -> Head | None:
            if head.pipeline:
                self._require_ledger(head)
            elif generation > 0 and has_files(self._dataset):
                raise positions_lost(self._address.url, "its feed", pipeline=self._pipeline)
            if head.positions and head.routing_digest == routing.digest:
                return None
            if not all_equal(head.positions):
                listed = ", ".join(f"{at.channel}: {at.seqno}" for at in head.positions)
                raise PlanError(
                    f"the routing changed (channels {len(head.positions)} to {routing.channels}) while the channels "
                    f"stand at {listed}",
                    hint="Run with the former parameters until all channels stop at the same seqno, then change them.",
                )
            seqno = low_watermark(head.positions) if head.positions else NO_SEQNO
            return Head(
                pipeline=self._pipeline,
                log_id=log_id,
                ledger=self._ledger_place(),
                routing_digest=routing.digest,
                generation=max(head.generation, generation),
                swept=head.swept,
                positions=tuple(
                    Position(channel=channel, seqno=seqno, generation=generation, claim=None)
                    for channel in range(routing.channels)
                ),
            )

        return low_watermark(self._advance("route", laid_out).positions)

    def take(
        self,
        channel: int | None,
        *,
        generation: int,
        token: str,
        routing_digest: str | None = None,
        group: int | None = None,
    ) -> Position:
        def taken(head: Head) -> Head | None:
            self._require_generation(head, generation)
            if routing_digest is not None and routing_digest != head.routing_digest:
                raise OwnershipLost(
                    "the pipeline was routed anew since this lane began",
                    hint="Clear the task open with everything downstream.",
                )
            found = head.taken(channel, generation=generation, token=token, group=group)
            return found if found != head else None

        held = [at for at in self._advance("take", taken).positions if channel in (None, at.channel)]
        if not held:
            raise ConfigurationError("the target has no position for the channel", hint="Clear the task open.")
        return min(held, key=lambda at: at.seqno)

    def take_part(self, unit: Unit) -> bool:
        def taken(head: Head) -> Head | None:
            self._require_generation(head, unit.generation)
            if not isinstance(unit.kind, GroupPart):
                raise PlanError("only a part of a group is taken as one", op="take")
            name = part_name(unit.kind.group, unit.kind.channel)
            if head.parts.get(name) == unit.token:
                return None
            return replace(head, parts={**head.parts, name: unit.token})

        self._advance("take", taken)
        return False

    def leave(self) -> None:
        """There are no sessions that could be ended."""

    def note_tables(self, unbegun: Sequence[Relation] | None = None) -> None:
        """No-op: it knows them by their names."""

    # --- apply ---

    def commit(self, unit: Unit, steps: Sequence[Step]) -> None:
        if self._head().moved(unit) is None:
            return
        found = UnitFiles(self._address, self._relations, unit, steps)
        committed = False

        def moved(head: Head) -> Head | None:
            nonlocal committed
            behind = head.moved(unit)
            committed = behind is not None
            if behind is None:
                return None
            found.require_staged(head)
            groups = [staged.unit.group for staged in found.merged if staged.unit.group is not None]
            return replace(behind, parts=behind.parts_from(max(groups) + 1)) if groups else behind

        try:
            self._advance("commit", moved, found.files)
        except FilesLost as error:
            found.discard()
            raise StagingLost(error.message, op="commit", channel=unit.channel) from error
        except (OwnershipLost, StagingLost):
            found.discard()
            raise
        if not committed:
            found.discard()

    def discard(self, token: str) -> None:
        """Do nothing: staged files mean nothing without a manifest, and a sweep removes them."""

    def cancel(self) -> None:
        """Nothing here waits for others."""

    def close(self) -> None: ...

    def _head(self) -> Head:
        self._known = self._dataset.newest(self._known)
        return self._mine(Head.of(self._known))

    def _advance(self, op: str, change: Callable[[Head], Head | None], files: Sequence[DataFile] = ()) -> Head:
        """Make the next manifest with the head that `change` makes of the newest one; none where it makes none. Errors:
        those of `change`; `FilesLost`.
        """

        def attempt() -> Head | None:
            head = self._head()
            wanted = change(head)
            if wanted is None:
                return head
            manifest = self._manifest(wanted, files)
            if not self._dataset.commit(manifest):
                return None
            self._known = manifest
            return wanted

        retrying: tenacity.Retrying = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda head: head is None),
            stop=tenacity.stop_after_attempt(_TRIES),
            wait=_PAUSE,
            retry_error_callback=lambda _: None,
        )
        found: Head | None = retrying(attempt)
        if found is None:
            raise Unavailable(f"other writers were faster {_TRIES} times", op=op, pipeline=self._pipeline)
        return found

    def _manifest(self, head: Head, files: Sequence[DataFile]) -> FileManifest:
        schemas = []
        for relation_id in sorted({file.relation_id for file in files}):
            relation = self._relations(relation_id)
            typing = row_typing(relation, self._address.texts_of(relation.name))
            schemas.append(schema_of(typing, relation_id))
        return FileManifest(
            version=0 if self._known is None else self._known.version + 1,
            log_id=head.log_id,
            format=self._address.format,
            writer=uuid.uuid4().hex[:12],
            created=self._clock(),
            positions=head.seqnos(),
            kept_as_text=tuple(sorted(self._address.texts)),
            tables=tuple(schemas),
            files=tuple(files),
            state=head.state(),
        )

    def _mine(self, head: Head) -> Head:
        if head.pipeline not in ("", self._pipeline):
            raise ConfigurationError(
                f"{self._address.url} is the directory of pipeline {head.pipeline}",
                pipeline=self._pipeline,
                hint="Give each pipeline a directory of its own.",
            )
        return head

    def _ledger_place(self) -> str:
        return "" if self._ledger is None else self._ledger()

    def _require_ledger(self, head: Head) -> None:
        if head.ledger != self._ledger_place():
            raise ConfigurationError(
                f"the ledger of pipeline {self._pipeline} is in database {head.ledger}, not in "
                f"{self._ledger_place() or 'none'}",
                hint="Name its own: ledger_conn_id, --ledger.",
            )

    @staticmethod
    def _require_generation(head: Head, generation: int) -> None:
        if head.generation != generation:
            raise OwnershipLost(
                f"generation {generation} of the pipeline is over: another run took it",
                hint="Clear the task open with everything downstream.",
            )
