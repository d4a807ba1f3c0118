"""Staged messages: files that Spark's workers write and lanes send, in a directory that both see.

::

    <staging>/<pipeline>/channel-<c>/<token>/…    a claim's, of one channel
    <staging>/<pipeline>/all/<token>/…            a claim's, of all channels
    <staging>/<pipeline>/group-<g>/<c|all>/…      a group's

A file that is gone was dropped by another holder; one that nobody acknowledged, the next holder drops.
"""

from __future__ import annotations

import heapq
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import xxhash

from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
from airflow_parallel_apply.pipeline.errors import StagingLost
from airflow_parallel_apply.pipeline.model.epoch import GroupPart, StagedTable, Unit
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress
from airflow_parallel_apply.pipeline.target.kafka.messages import STAGED

_GROUP: Final = "group-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message on its way. `order`: its place in the unit."""

    order: tuple[int, int]
    topic: str
    bucket: int
    operation: str
    commit_time: str
    key: bytes | None
    value: bytes


def folder_of(unit: Unit) -> str:
    """Where the files of a unit are, in the staging directory."""
    scope = "all" if unit.channel is None else f"channel-{unit.channel}"
    if isinstance(unit.kind, GroupPart):
        return f"{unit.pipeline}/{_GROUP}{unit.kind.group}/{scope}/{_name(unit.token)}"
    return f"{unit.pipeline}/{scope}/{_name(unit.token)}"


class Staging:
    """The files of one pipeline. Thread-safe. Errors: `Unavailable`, `EncodeError`."""

    def __init__(self, address: KafkaAddress, pipeline: str) -> None:
        self._place = FilePlace(address.staging)
        self._pipeline = pipeline

    def write(self, folder: str, name: str, relation_id: int, batches: Sequence[pa.RecordBatch]) -> str:
        """Write messages of one relation to a file; its path. `name`: another for each file."""
        path = f"{folder}/{_name(name)}-{relation_id}.arrow"
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, STAGED, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
            for batch in batches:
                stream.write_batch(batch)
        self._place.write(path, [sink.getvalue()])
        return path

    def read(self, tables: Iterable[tuple[str, StagedTable]]) -> Iterator[Message]:
        """The messages of staged tables, each with its topic, in the order of the unit's changes. All files are read
        before this returns. Errors: `StagingLost`.
        """
        opened = []
        for topic, table in tables:
            if self._place.size(table.staging) is None:
                raise StagingLost(f"{table.staging} is not there any more", op="commit", pipeline=self._pipeline)
            opened.append(messages_of(topic, pa.ipc.open_stream(self._place.read(table.staging))))
        return heapq.merge(*opened, key=lambda message: message.order)

    def remove(self, tables: Iterable[StagedTable]) -> None:
        """Remove what was committed."""
        for table in tables:
            self._place.remove(table.staging)

    def drop_claims(self, channel: int | None, *, but_token: str = "") -> None:
        """Drop what claims of a channel, and of all channels, staged (None: of any), but for one token."""
        wanted = None if channel is None else {f"channel-{channel}", "all"}
        kept = _name(but_token) if but_token else None
        for path in self._place.names(self._pipeline):
            _, scope, token, *_ = path.split("/")
            if not scope.startswith(_GROUP) and (wanted is None or scope in wanted) and token != kept:
                self._place.remove(path)

    def drop_groups(self, *, below: int | None = None) -> None:
        """Drop what groups staged: all of them, or those below one."""
        for path in self._place.names(self._pipeline):
            scope = path.split("/")[1]
            if scope.startswith(_GROUP) and (below is None or int(scope.removeprefix(_GROUP)) < below):
                self._place.remove(path)

    def drop_part(self, unit: Unit) -> None:
        """Drop what former stagers of a part of a group staged."""
        for path in self._place.names(folder_of(unit).rpartition("/")[0]):
            self._place.remove(path)

    def drop_token(self, token: str) -> None:
        """Drop what a claim staged."""
        for path in self._place.names(self._pipeline):
            if _name(token) in path.split("/")[2:4]:
                self._place.remove(path)


def messages_of(topic: str, batches: Iterable[pa.RecordBatch]) -> Iterator[Message]:
    """Those of `STAGED` batches, in their order."""
    for batch in batches:
        columns: dict[str, list[Any]] = batch.to_pydict()
        for seqno, fragno, bucket, operation, time, key, value in zip(*columns.values(), strict=True):
            yield Message(
                order=(seqno, fragno),
                topic=topic,
                bucket=bucket,
                operation=operation,
                commit_time=time,
                key=key,
                value=value,
            )


def _name(text: str) -> str:
    """A name for files, whatever is in the text."""
    return xxhash.xxh3_128_hexdigest(text.encode())
