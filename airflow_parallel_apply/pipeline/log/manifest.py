"""Manifests: the versions of a log, each of which says what it adds to the one before.

Version 0 is an empty checkpoint, made with the log. Every so often a manifest is a checkpoint, which says
everything, so opening a long log reads one checkpoint and what follows it. Manifests are never removed: if
version n+1 could vanish, a writer that still stands at n could publish another one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Final

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.protocol import (
    LogState,
    PassedOver,
    ResumePoint,
    Segment,
)
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Relation
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.model.sighting import Sighting, in_order, still_needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """A segment that a compaction replaced; its files stay for readers that still scan them."""

    name: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One version. In a checkpoint `added`, `relations`, `sightings` and `retired` are everything, else what is new."""

    version: int
    checkpoint: bool
    writer: str
    created: datetime
    added: tuple[Segment, ...]
    removed: tuple[str, ...]
    retired: tuple[Retired, ...]
    relations: tuple[Relation, ...]
    captured_offset: Offset
    last_seqno: int
    last_commit_time: datetime | None
    purged_time: datetime | None = None
    registration: str | None = None
    """None where it is that of the version before."""
    registered_offset: Offset = 0
    passed_over: tuple[PassedOver, ...] | None = None
    """None where it is that of the version before."""
    sightings: tuple[Sighting, ...] = ()
    resume: ResumePoint | None = None
    released: tuple[Offset, ...] = ()
    adopted_server: str | None = None
    """None where it is that of the version before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """The log at one version: what a reader sees, and which replaced files may still be in use."""

    version: int
    state: LogState
    retired: tuple[Retired, ...] = ()


EMPTY_VIEW: Final = LogView(
    version=-1,
    state=LogState(last_seqno=NO_SEQNO, captured_offset=0, last_commit_time=None, segments=(), relations=()),
)


def advance(view: LogView, manifest: Manifest) -> LogView:
    """The view after a manifest. `LogError` when segments overlap or leave a gap."""
    removed = frozenset(manifest.removed)
    if manifest.checkpoint:
        segments, relations, retired = manifest.added, manifest.relations, manifest.retired
        sightings = manifest.sightings
    else:
        segments = tuple(segment for segment in view.state.segments if segment.name not in removed) + manifest.added
        relations = view.state.relations + manifest.relations
        sightings = in_order((*view.state.sightings, *manifest.sightings))
        retired = view.retired + tuple(Retired(name=name, since=manifest.created) for name in manifest.removed)
    if removed:
        segments = tuple(sorted(segments, key=lambda segment: (segment.first_seqno, segment.first_fragno)))
    for before, after in pairwise(segments):
        if not _adjoins(before, after):
            raise LogError(
                f"manifest {manifest.version}: segment {after.name} does not follow {before.name}",
                hint="The log was not written by one writer: restore it.",
            )
    return LogView(
        version=manifest.version,
        state=LogState(
            last_seqno=manifest.last_seqno,
            captured_offset=manifest.captured_offset,
            last_commit_time=manifest.last_commit_time,
            segments=segments,
            relations=relations,
            purged_time=manifest.purged_time or view.state.purged_time,
            registration=view.state.registration if manifest.registration is None else manifest.registration,
            registered_offset=max(manifest.registered_offset, view.state.registered_offset),
            passed_over=view.state.passed_over if manifest.passed_over is None else manifest.passed_over,
            sightings=still_needed(sightings, manifest.captured_offset),
            # Not the last one known: a version without one was written by software that released the source past it.
            resume=manifest.resume,
            released=manifest.released,
            adopted_server=manifest.adopted_server or view.state.adopted_server,
        ),
        retired=retired,
    )


def as_checkpoint(manifest: Manifest, view: LogView, *, retired_after: datetime) -> Manifest:
    """The same version as a checkpoint; `view` is the one after it. Long retired segments are left out."""
    return replace(
        manifest,
        checkpoint=True,
        added=view.state.segments,
        relations=view.state.relations,
        purged_time=view.state.purged_time,
        registration=view.state.registration,
        registered_offset=view.state.registered_offset,
        passed_over=view.state.passed_over,
        sightings=view.state.sightings,
        adopted_server=view.state.adopted_server,
        retired=tuple(retired for retired in view.retired if retired.since > retired_after),
    )


def _adjoins(before: Segment, after: Segment) -> bool:
    if after.first_seqno == before.last_seqno:
        return after.first_fragno > before.last_fragno
    return after.first_seqno == before.last_seqno + 1
