"""Manifests: the versions of a log, each a small JSON file that says what it adds to the one before.

Version 0 is an empty checkpoint, made with the log. Every so often a manifest is a checkpoint, which says
everything, so opening a long log reads one checkpoint and what follows it. Manifests are never removed: if
version n+1 could vanish, a writer that still stands at n could publish another one.

The file is `{"checksum":"<32 hex digits>","body":<body>}`; the checksum is xxh3_128 of the body's bytes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import xxhash

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.directory import RESTORE, LogDirectory, file_errors
from airflow_parallel_apply.pipeline.log.protocol import (
    LOG_FORMAT,
    LogIdentity,
    LogState,
    PassedOver,
    ResumePoint,
    RowGroup,
    Segment,
)
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Relation
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.model.sighting import Sighting, in_order, still_needed

_HEAD: Final = b'{"checksum":"'
_MIDDLE: Final = b'","body":'
_TAIL: Final = b"}\n"
_BODY_START: Final = len(_HEAD) + 32 + len(_MIDDLE)
_KEPT_MANIFESTS: Final = 64
_KEPT_VIEWS: Final = 4
_FORMER_WORDS: Final = {
    "captured_lsn": "captured_offset",
    "registered_lsn": "registered_offset",
    "below_lsn": "below_offset",
    "lsn": "offset",
}
"""Of offsets, in manifests that older versions wrote, whose sources were all PostgreSQL's."""


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


def load(directory: LogDirectory) -> LogView:
    """The newest view. `LogError` for a version that is missing or does not match its checksum."""
    versions = directory.manifest_versions()
    if not versions:
        raise LogError(
            f"{directory.manifests} holds no manifest",
            hint=f"The log's directory was emptied, or is not the one that capture writes. {RESTORE}",
        )
    pending: list[_File] = []
    for version in range(versions[-1], -1, -1):
        file = _file(directory, version)
        pending.append(file)
        if _read_file(file).checkpoint:
            break
    return _view(tuple(reversed(pending)))


def catch_up(directory: LogDirectory, view: LogView) -> LogView:
    """The newest view, from an older one: one look for the next version's name when there is none."""
    while directory.manifest_path(view.version + 1).exists():
        view = advance(view, read_manifest(directory, view.version + 1))
    return view


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
            # Not the last one known: a version without one was written by software that moved the slot past it.
            resume=manifest.resume,
            released=manifest.released,
            adopted_server=manifest.adopted_server or view.state.adopted_server,
        ),
        retired=retired,
    )


def read_manifest(directory: LogDirectory, version: int) -> Manifest:
    """One version, checked. `LogError` names the file. Kept for who reads it next, as long as the file is the same: of
    thousands of tables it takes a second.
    """
    return _read_file(_file(directory, version))


class _File(NamedTuple):
    """A version's file, and what tells it from another of the same name."""

    path: Path
    version: int
    inode: int
    size: int
    written: int
    changed: int


def _file(directory: LogDirectory, version: int) -> _File:
    path = directory.manifest_path(version)
    with file_errors(path):
        found = path.stat()
    return _File(path, version, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@lru_cache(maxsize=_KEPT_VIEWS)
def _view(files: tuple[_File, ...]) -> LogView:
    """After a checkpoint and the versions that follow it."""
    view = EMPTY_VIEW
    for file in files:
        view = advance(view, _read_file(file))
    return view


@lru_cache(maxsize=_KEPT_MANIFESTS)
def _read_file(file: _File) -> Manifest:
    path, version = file.path, file.version
    body = _in_words_of_now(read_checked(path))
    try:
        manifest = Manifest(
            version=body["version"],
            checkpoint=body["checkpoint"],
            writer=body["writer"],
            created=datetime.fromisoformat(body["created"]),
            added=tuple(_segment_from_json(value) for value in body["added"]),
            removed=tuple(body["removed"]),
            retired=tuple(Retired(name=name, since=datetime.fromisoformat(since)) for name, since in body["retired"]),
            relations=tuple(Relation.from_json(value) for value in body["relations"]),
            captured_offset=body["captured_offset"],
            last_seqno=body["last_seqno"],
            last_commit_time=_time_from_json(body["last_commit_time"]),
            # Older versions of the software did not purge.
            purged_time=_time_from_json(body.get("purged_time")),
            # Older versions of the software did not register tables.
            registration=body.get("registration"),
            registered_offset=body.get("registered_offset", 0),
            passed_over=_passed_over_from_json(body.get("passed_over")),
            # Nor did they keep sightings.
            sightings=tuple(Sighting.from_json(value) for value in body.get("sightings", ())),
            resume=ResumePoint(**_in_words_of_now(body["resume"])) if body.get("resume") else None,
            # Nor could they adopt another server.
            released=tuple(body.get("released", ())),
            adopted_server=body.get("adopted_server"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise LogError(f"{path} is not a manifest of this version of the software: {error!r}") from error
    if manifest.version != version:
        raise LogError(f"{path} says that it is version {manifest.version}", hint=RESTORE)
    return manifest


def manifest_bytes(manifest: Manifest) -> bytes:
    """The file's content."""
    return checked_bytes(
        {
            "version": manifest.version,
            "checkpoint": manifest.checkpoint,
            "writer": manifest.writer,
            "created": manifest.created.isoformat(),
            "added": [_segment_to_json(segment) for segment in manifest.added],
            "removed": list(manifest.removed),
            "retired": [[retired.name, retired.since.isoformat()] for retired in manifest.retired],
            "relations": [relation.to_json() for relation in manifest.relations],
            "captured_offset": manifest.captured_offset,
            "last_seqno": manifest.last_seqno,
            "last_commit_time": manifest.last_commit_time.isoformat() if manifest.last_commit_time else None,
            "purged_time": manifest.purged_time.isoformat() if manifest.purged_time else None,
            "registration": manifest.registration,
            "registered_offset": manifest.registered_offset,
            "passed_over": None if manifest.passed_over is None else [asdict(found) for found in manifest.passed_over],
            "sightings": [sighting.to_json() for sighting in manifest.sightings],
            "resume": asdict(manifest.resume) if manifest.resume else None,
            "released": list(manifest.released),
            "adopted_server": manifest.adopted_server,
        }
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


def identity_bytes(identity: LogIdentity) -> bytes:
    """The content of `log.json`."""
    return checked_bytes(
        {
            "log_id": identity.log_id,
            "system_identifier": identity.system_identifier,
            "database": identity.database,
            "slot": identity.slot,
            "publication": identity.publication,
            "bucket_count": identity.bucket_count,
            "created": identity.created.isoformat(),
            "format": identity.format,
        }
    )


def read_identity(directory: LogDirectory) -> LogIdentity:
    """What the log is a log of. `LogError` when there is no log, or one that another version wrote."""
    identity = read_any_identity(directory)
    if identity.format != LOG_FORMAT:
        raise LogError(
            f"{directory.root} is a log of format {identity.format}, and this version knows {LOG_FORMAT}",
            hint="Run the pipeline to its end with the version that wrote it, `parallel-apply drop`, then start=equal.",
        )
    return identity


def read_any_identity(directory: LogDirectory) -> LogIdentity:
    """As `read_identity`, of a log of any format."""
    body = {"format": 1, **read_checked(directory.identity_path)}
    try:
        return LogIdentity(**{**body, "created": datetime.fromisoformat(body["created"])})
    except (KeyError, TypeError, ValueError) as error:
        raise LogError(f"{directory.identity_path} is not a log's identity: {error!r}") from error


def checked_bytes(body: dict[str, Any]) -> bytes:
    """JSON that carries its own checksum."""
    content = json.dumps(body, separators=(",", ":")).encode()
    return _HEAD + xxhash.xxh3_128_hexdigest(content).encode() + _MIDDLE + content + _TAIL


def read_checked(path: Path) -> dict[str, Any]:
    """Inverse of `checked_bytes`. `LogError` that names the file when it is missing or has changed."""
    with file_errors(path):
        content = path.read_bytes()
    body = content[_BODY_START : -len(_TAIL)]
    if content != _HEAD + xxhash.xxh3_128_hexdigest(body).encode() + _MIDDLE + body + _TAIL:
        raise LogError(f"{path} does not match its checksum", hint=RESTORE)
    decoded: dict[str, Any] = json.loads(body)
    return decoded


def _adjoins(before: Segment, after: Segment) -> bool:
    if after.first_seqno == before.last_seqno:
        return after.first_fragno > before.last_fragno
    return after.first_seqno == before.last_seqno + 1


def _segment_to_json(segment: Segment) -> dict[str, Any]:
    return {
        "name": segment.name,
        "first_seqno": segment.first_seqno,
        "last_seqno": segment.last_seqno,
        "first_fragno": segment.first_fragno,
        "last_fragno": segment.last_fragno,
        "row_count": segment.row_count,
        "transaction_count": segment.transaction_count,
        "byte_count": segment.byte_count,
        "file_bytes": segment.file_bytes,
        "checksum": segment.checksum,
        "last_commit_time": segment.last_commit_time.isoformat(),
        "order_version": segment.order_version,
        "row_groups": [[group.first_bucket, group.last_bucket, group.row_count] for group in segment.row_groups],
    }


def _segment_from_json(value: dict[str, Any]) -> Segment:
    return Segment(
        **{
            **value,
            "last_commit_time": datetime.fromisoformat(value["last_commit_time"]),
            "row_groups": tuple(
                RowGroup(first_bucket=first, last_bucket=last, row_count=count)
                for first, last, count in value["row_groups"]
            ),
        }
    )


def _passed_over_from_json(value: list[dict[str, Any]] | None) -> tuple[PassedOver, ...] | None:
    return None if value is None else tuple(PassedOver(**_in_words_of_now(found)) for found in value)


def _in_words_of_now(value: dict[str, Any]) -> dict[str, Any]:
    return {_FORMER_WORDS.get(word, word): found for word, found in value.items()}


def _time_from_json(value: str | None) -> datetime | None:
    return datetime.fromisoformat(value) if value is not None else None
