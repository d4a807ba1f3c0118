"""Manifests as files: written whole, read back checked, and put together into the newest view of a log.

What this process has read or put together is kept, as long as the files are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.checked_file import checked_body, checked_bytes, read_checked
from airflow_parallel_apply.pipeline.log.directory import RESTORE, LogDirectory, file_errors
from airflow_parallel_apply.pipeline.log.manifest import EMPTY_VIEW, LogView, Manifest, Retired, advance
from airflow_parallel_apply.pipeline.log.protocol import PassedOver, ResumePoint, RowGroup, Segment
from airflow_parallel_apply.pipeline.model import former
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.sighting import Sighting

_KEPT_MANIFESTS: Final = 64
_KEPT_VIEWS: Final = 4


def load(directory: LogDirectory) -> LogView:
    """The newest view. `LogError` for a version that is missing or does not match its checksum."""
    return _view(_newest(directory))


class NewestView:
    """The newest view of a log, from look to look: one for the next version's name when there is none. It is read anew
    if the last manifest is another file by now, or gone: the directory was restored. Threads may share one.
    """

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory
        self._seen = self._read()

    def look(self) -> LogView:
        """Errors: as `load`."""
        view, last = self._seen
        if not last.path.exists() or _file(self._directory, last.version) != last:
            view, last = self._read()
        while self._directory.manifest_path(view.version + 1).exists():
            last = _file(self._directory, view.version + 1)
            view = advance(view, _read_file(last))
        self._seen = view, last
        return view

    def _read(self) -> tuple[LogView, _File]:
        files = _newest(self._directory)
        return _view(files), files[-1]


def manifest_contents(directory: LogDirectory, *, after_version: int) -> list[bytes]:
    """The files of the versions behind one, as they are; from the last checkpoint on where that is -1."""
    if after_version < 0:
        return [_content(file) for file in _newest(directory)]
    contents = []
    while directory.manifest_path(after_version + 1).exists():
        after_version += 1
        contents.append(_content(_file(directory, after_version)))
    return contents


def advance_by(view: LogView, contents: Sequence[bytes], *, place: str) -> LogView:
    """The view after manifests that came as contents, checked as files are. `place`: where they come from."""
    for content in contents:
        view = advance(view, _manifest(checked_body(content, place), place))
    return view


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


def _newest(directory: LogDirectory) -> tuple[_File, ...]:
    """The last checkpoint, and the versions that follow it."""
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
    return tuple(reversed(pending))


def _content(file: _File) -> bytes:
    with file_errors(file.path):
        return file.path.read_bytes()


@lru_cache(maxsize=_KEPT_VIEWS)
def _view(files: tuple[_File, ...]) -> LogView:
    """After a checkpoint and the versions that follow it."""
    view = EMPTY_VIEW
    for file in files:
        view = advance(view, _read_file(file))
    return view


@lru_cache(maxsize=_KEPT_MANIFESTS)
def _read_file(file: _File) -> Manifest:
    """One version, checked. `LogError` names the file. Of thousands of tables it takes a second."""
    manifest = _manifest(read_checked(file.path), str(file.path))
    if manifest.version != file.version:
        raise LogError(f"{file.path} says that it is version {manifest.version}", hint=RESTORE)
    return manifest


def _manifest(body: dict[str, Any], path: str) -> Manifest:
    body = former.in_words_of_now(body, former.OFFSETS)
    try:
        return Manifest(
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
            resume=ResumePoint(**former.in_words_of_now(body["resume"], former.OFFSETS))
            if body.get("resume")
            else None,
            # Nor could they adopt another server.
            released=tuple(body.get("released", ())),
            adopted_server=body.get("adopted_server"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise LogError(f"{path} is not a manifest of this version of the software: {error!r}") from error


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
    return (
        None if value is None else tuple(PassedOver(**former.in_words_of_now(found, former.OFFSETS)) for found in value)
    )


def _time_from_json(value: str | None) -> datetime | None:
    return datetime.fromisoformat(value) if value is not None else None
