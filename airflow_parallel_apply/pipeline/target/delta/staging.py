"""Staging in a lake: Parquet files of one claim or one part of a group, which no table knows yet.

::

    _parallel_apply/<pipeline>/staged/<scope>/<token>/<attempt>-<number>.parquet

A scope is a channel (`c3`), all channels (`all`), or the part of a group (`g7-c3`, `g7-all`). Nobody lists these files
to find rows: an attempt names its own, so one that nobody acknowledged is nobody's, and is swept with the claim.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from airflow_parallel_apply.pipeline.errors import StagingLost, Unavailable
from airflow_parallel_apply.pipeline.target.delta.place import CONTROL, Lake
from airflow_parallel_apply.pipeline.target.delta.tables import sync_file

_GROUP: Final = re.compile(r"g([0-9]+)-")
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_.-]")


def scope_of(channel: int | None, group: int | None) -> str:
    """The scope of staging: a claim's channel, or a part of a group."""
    part = "all" if channel is None else f"c{channel}"
    return part if group is None else f"g{group}-{part}"


def group_of(scope: str) -> int | None:
    """The number of the group that a scope is a part of; None: it is a claim's."""
    found = _GROUP.match(scope)
    return None if found is None else int(found[1])


class Staging:
    """The staged files of one pipeline. Thread-safe."""

    def __init__(self, lake: Lake, pipeline: str) -> None:
        self._lake = lake
        self._uri = lake.uri(CONTROL, pipeline, "staged")

    def name(self, scope: str, token: str, attempt: str, number: int) -> str:
        """The path of a new file, below the pipeline's staging. `attempt` makes it unique."""
        return f"{scope}/{token_word(token)}/{token_word(attempt)}-{number}.parquet"

    @contextmanager
    def writing(self, name: str, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
        """Write a file, which is there, and on the disk, when this ends. Errors: `Unavailable`."""
        path = self._path(name)
        with _errors("stage"):
            if self._lake.is_local:
                self._lake.files.create_dir(path.rpartition("/")[0], recursive=True)
            with pq.ParquetWriter(path, schema, filesystem=self._lake.files, compression="zstd") as writer:
                yield writer
            sync_file(self._lake, path)

    def read(self, names: Collection[str]) -> pa.Table:
        """The rows of files. Errors: `StagingLost` where one is gone."""
        with _errors("commit"):
            tables = [pq.read_table(self._path(name), filesystem=self._lake.files) for name in names]
        return pa.concat_tables(tables)

    def require(self, names: Collection[str]) -> None:
        """Raise `StagingLost` unless all are there."""
        if not names:
            return
        with _errors("commit"):
            found = self._lake.files.get_file_info([self._path(name) for name in names])
        for name, info in zip(names, found, strict=True):
            if info.type is fs.FileType.NotFound:
                raise StagingLost(f"what was staged is gone: {name}", op="commit")

    def drop(self, names: Collection[str]) -> None:
        """Remove files; those that are gone do not matter."""
        for name in names:
            with _errors("discard", missing_ok=True):
                self._lake.files.delete_file(self._path(name))

    def sweep(self, is_dropped: Callable[[str, str], bool], *, is_ours: Callable[[], bool]) -> None:
        """Remove the files of all scopes and tokens that `is_dropped` says, if `is_ours` says, when they are listed,
        that the caller's claim holds: so whoever comes late removes nothing of his successors'.
        """
        root = self._lake.path(self._uri)
        with _errors("take"):
            found = self._lake.files.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
        names = [info.path[len(root) + 1 :] for info in found if info.type is fs.FileType.File]
        dropped = [name for name in names if is_dropped(*name.split("/")[:2])]
        if dropped and is_ours():
            self.drop(dropped)

    def _path(self, name: str) -> str:
        return f"{self._lake.path(self._uri)}/{name}"


def token_word(text: str) -> str:
    """A token as a part of a path."""
    return _UNFIT.sub("-", text)


@contextmanager
def _errors(op: str, *, missing_ok: bool = False) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        if not missing_ok:
            raise StagingLost("what was staged is gone", op=op) from error
    except OSError as error:
        raise Unavailable(" ".join(str(error).split()), op=op) from error
