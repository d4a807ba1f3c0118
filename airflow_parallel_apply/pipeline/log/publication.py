"""Publication: a log's versions as its writer makes them, one manifest after another.

The manifest's exclusive create is the only step that other processes observe. A writer that loses it to another one is
refused from then on (`WriterFenced`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.compaction import segment_name, sweep
from airflow_parallel_apply.pipeline.log.directory import LogDirectory, file_errors, publish, sync_directory
from airflow_parallel_apply.pipeline.log.manifest import LogView, Manifest, advance, as_checkpoint
from airflow_parallel_apply.pipeline.log.manifest_file import load, manifest_bytes
from airflow_parallel_apply.pipeline.log.options import WriterOptions
from airflow_parallel_apply.pipeline.log.protocol import PassedOver, ResumePoint, Segment, WriterFenced
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Relation
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.model.sighting import Sighting


class Publication:
    """Makes the versions of one writer, from the newest one on. `clock` answers in UTC."""

    def __init__(self, directory: LogDirectory, *, options: WriterOptions, clock: Callable[[], datetime]) -> None:
        self.view: LogView = load(directory)
        # A writer that died may not have synced the name of what we have just read, by which the source is released.
        sync_directory(directory.manifests)
        self._directory = directory
        self._options = options
        self._clock = clock
        self._writer = uuid.uuid4().hex[:12]
        self._segment_number = 0
        self._ended: str | None = None
        self._sweep()

    def check_alive(self) -> None:
        """Raise `LogError` once this writer was refused, or does not know what it published."""
        if self._ended is not None:
            raise LogError(self._ended, hint="Open a new writer.")

    def next_segment_name(self) -> str:
        """A new name for a segment of the next version."""
        self._segment_number += 1
        return segment_name(self.view.version + 1, self._writer, self._segment_number)

    def was_overtaken(self) -> bool:
        """True if another writer has made the next version."""
        return self._directory.manifest_path(self.view.version + 1).exists()

    def refuse(self) -> WriterFenced:
        """End this writer, which another one has overtaken; return the error to raise."""
        self._ended = f"another writer published version {self.view.version + 1} of {self._directory.root} first"
        return WriterFenced(
            self._ended,
            op="commit",
            hint="Only one capture may run for a log; nothing of this one was published, and its source stays.",
        )

    def publish(
        self,
        *,
        added: tuple[Segment, ...],
        removed: tuple[str, ...] = (),
        relations: tuple[Relation, ...] = (),
        sightings: tuple[Sighting, ...] = (),
        captured_offset: Offset,
        resume: ResumePoint | None = None,
        purged_time: datetime | None = None,
        registration: str | None = None,
        registered_offset: Offset = 0,
        passed_over: tuple[PassedOver, ...] | None = None,
        released: tuple[Offset, ...] = (),
        adopted_server: str | None = None,
        is_empty: bool = False,
    ) -> bool:
        """Make the next version; False when another writer has made it, and then nothing has changed. `is_empty`: it
        has no transaction, as if none had ever been.
        """
        state = self.view.state
        now = self._clock()
        last = added[-1] if added and not removed else None
        manifest = Manifest(
            version=self.view.version + 1,
            checkpoint=False,
            writer=self._writer,
            created=now,
            added=added,
            removed=removed,
            retired=(),
            relations=relations,
            captured_offset=captured_offset,
            last_seqno=NO_SEQNO if is_empty else last.last_seqno if last else state.last_seqno,
            last_commit_time=None if is_empty else last.last_commit_time if last else state.last_commit_time,
            purged_time=purged_time,
            registration=registration,
            registered_offset=registered_offset,
            passed_over=passed_over,
            sightings=sightings,
            resume=resume or state.resume,
            released=released or (state.released if resume in (None, state.resume) else ()),
            adopted_server=adopted_server,
        )
        view = advance(self.view, manifest)
        if manifest.version % self._options.checkpoint_every == 0:
            manifest = as_checkpoint(manifest, view, retired_after=now - self._options.superseded_grace)
        # Whoever handed its files over has them no more: there is no second try.
        self._ended = f"the outcome of publishing version {manifest.version} of {self._directory.root} is unknown"
        for segment in added:
            for path in (self._directory.rows_path(segment.name), self._directory.transactions_path(segment.name)):
                with file_errors(path):
                    path.stat()
        sync_directory(self._directory.segments)
        published = publish(self._directory.manifest_path(manifest.version), manifest_bytes(manifest))
        if published:
            self.view = view
        self._ended = None
        return published

    def sweep_if_due(self) -> None:
        """Remove what nobody needs any more, once a while."""
        if self._clock() >= self._sweep_due:
            self._sweep()

    def _sweep(self) -> None:
        now = self._clock()
        sweep(self._directory, self.view, now=now, options=self._options)
        self._sweep_due = now + self._options.superseded_grace
