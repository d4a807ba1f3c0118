"""Removing a log's directory.

`log.json` goes last: a removal that was cut off leaves a log that refuses to open, never one that could be taken for a
new and empty one; and it can be taken up again.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.directory import LogDirectory, file_errors
from airflow_parallel_apply.pipeline.log.identity import read_any_identity


def remove_log(url: str, *, stream: str) -> bool:
    """False when there is none. `LogError` when it is another stream's. Files that are not a log's stay."""
    directory = LogDirectory.from_url(url)
    with file_errors(directory.identity_path):
        if not directory.identity_path.exists():
            return False
    identity = read_any_identity(directory)
    if identity.stream != stream:
        raise LogError(
            f"{directory.root} is the log of stream {identity.stream}, not of {stream}; it stays",
            hint="Give the log_url of this pipeline's log.",
        )
    with file_errors(directory.channels):
        if directory.channels.exists():
            shutil.rmtree(directory.channels)
    for folder in (directory.segments, directory.manifests, directory.readers):
        _empty(folder)
    with file_errors(directory.identity_path):
        directory.copy_note.unlink(missing_ok=True)
        directory.identity_path.unlink(missing_ok=True)
        # Not ours to remove where somebody keeps other files in it.
        with contextlib.suppress(OSError):
            directory.root.rmdir()
    return True


def _empty(folder: Path) -> None:
    with file_errors(folder):
        if not folder.exists():
            return
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
        folder.rmdir()
