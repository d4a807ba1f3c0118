"""The directory of a pipeline's channel logs, beside the log that they are made from.

::

    channels/<digest>/pipeline.json                    whose they are
    channels/<digest>/held/<after>-<last>.json         a stretch that is held, by exclusive create: its files, and the
                                                       mark of its last transaction
    channels/<digest>/<channel>/<after>-<last>-<…>.parquet

The digest is that of everything that a channel's rows depend on beside their seqnos: the log, what it passes over since
tables were copied anew, the pipeline and its routing. So a stretch never changes: there it is, or it is not; but where
the log is restored, it may be of transactions that the log has lost, which its mark shows. Files that no stretch names
are those of a feeder that is at work, or died.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.checked_file import checked_bytes, read_checked
from airflow_parallel_apply.pipeline.log.directory import LogDirectory, file_errors, publish
from airflow_parallel_apply.pipeline.log.mark import Mark
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.store.protocol import Stretch

_OWNER: Final = "pipeline.json"
_HELD: Final = "held"
_DIGITS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelFile:
    """The rows of a stretch in one channel. `checksum`: xxh3_128 of the file."""

    name: str
    row_count: int
    file_bytes: int
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A stretch that is held. `mark`: of its last transaction. A channel without a file has no row in it."""

    stretch: Stretch
    mark: Mark
    files: Mapping[int, ChannelFile]


@dataclass(frozen=True, slots=True)
class ChannelDirectory:
    """The paths of one digest."""

    root: Path

    @classmethod
    def of_pipeline(cls, log: LogReader, pipeline: str, routing: Routing) -> ChannelDirectory:
        """The one that holds the log as it is now. Errors: `LogError`, of a log that a router serves."""
        if log.root is None:
            raise LogError(
                "the store channel_log keeps its files beside the log, and a router serves the log",
                hint="Use another store with this log_url.",
            )
        state = log.state()
        told = [log.identity.log_id, sorted(one.recopy_id for one in state.passed_over), pipeline, routing.digest]
        digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
        return cls(LogDirectory(root=log.root).channels / digest)

    def channel(self, channel: int) -> Path:
        """The folder of a channel's log."""
        return self.root / str(channel)

    def path(self, channel: int, file: ChannelFile) -> Path:
        return self.channel(channel) / file.name

    @property
    def owner_path(self) -> Path:
        return self.root / _OWNER

    def create(self, pipeline: str, channels: int) -> None:
        """Make the folders. Idempotent. Errors: `LogError`."""
        with file_errors(self.root):
            for folder in (self.root / _HELD, *(self.channel(channel) for channel in range(channels))):
                folder.mkdir(parents=True, exist_ok=True)
            is_there = self.owner_path.exists()
        if not is_there:
            publish(self.owner_path, checked_bytes({"pipeline": pipeline}))

    def stretches(self) -> list[Stretch]:
        """Those that are held, in order."""
        with file_errors(self.root):
            try:
                names = [path.stem for path in (self.root / _HELD).iterdir() if path.suffix == ".json"]
            except FileNotFoundError:
                return []
        return sorted(_parsed(name) for name in names if not name.startswith("."))

    def read(self, stretch: Stretch) -> Held:
        """Errors: `LogError` where it is not held any more, or was damaged."""
        body = read_checked(self._held_path(stretch))
        try:
            mark = Mark(**body["mark"])
            files = {int(channel): ChannelFile(**file) for channel, file in body["files"].items()}
        except (KeyError, TypeError, ValueError) as error:
            raise LogError(f"{self._held_path(stretch)} does not say what it holds: {error!r}") from error
        return Held(stretch=stretch, mark=mark, files=files)

    def hold(self, held: Held) -> bool:
        """False where it is held already, and then nothing has changed. Errors: `LogError`."""
        files = {str(channel): asdict(file) for channel, file in held.files.items()}
        return publish(self._held_path(held.stretch), checked_bytes({"mark": asdict(held.mark), "files": files}))

    def forget(self, stretch: Stretch) -> None:
        """Hold it no more. Errors: `LogError`."""
        path = self._held_path(stretch)
        with file_errors(path):
            path.unlink(missing_ok=True)

    def _held_path(self, stretch: Stretch) -> Path:
        return self.root / _HELD / f"{name_of(stretch)}.json"


def name_of(stretch: Stretch) -> str:
    """The beginning of its files' names. Written with the first seqno, which is never negative."""
    return f"{stretch.after_seqno + 1:0{_DIGITS}d}-{stretch.last_seqno:0{_DIGITS}d}"


def chain(stretches: Sequence[Stretch], after_seqno: int, last_seqno: int) -> tuple[Stretch, ...]:
    """Find stretches that follow one another without a gap and without a seqno twice, from one that has the first seqno
    to one that has the last; none where there are none. Of several that begin at a place the longest is taken.
    """
    # Sorted, the longest of one place comes last.
    longest = {stretch.after_seqno: stretch for stretch in sorted(stretches)}
    for first in longest.values():
        if not first.after_seqno <= after_seqno < first.last_seqno:
            continue
        found = [first]
        while found[-1].last_seqno < last_seqno and found[-1].last_seqno in longest:
            found.append(longest[found[-1].last_seqno])
        if found[-1].last_seqno >= last_seqno:
            return tuple(found)
    return ()


def owner_of(root: Path) -> str | None:
    """The pipeline whose channel logs a directory holds; None where it does not say. Errors: none."""
    try:
        found = read_checked(root / _OWNER).get("pipeline")
    except LogError:
        return None
    return found if isinstance(found, str) else None


def _parsed(name: str) -> Stretch:
    first, _, last = name.partition("-")
    return Stretch(int(first) - 1, int(last))
