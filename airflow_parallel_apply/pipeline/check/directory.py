"""The log's directory, as this process sees it."""

from __future__ import annotations

import os
import shlex
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.log.directory import LogDirectory
from airflow_parallel_apply.pipeline.log.open import log_exists, open_reader
from airflow_parallel_apply.pipeline.model.finding import Finding, Side, new_finding

PROBE_PREFIX: Final = ".parallel-apply-check-"

_finding: Final = partial(new_finding, Side.LOG)


def directory_findings(log_url: str) -> tuple[Finding, ...]:
    """That the log opens, or that it could be made; what cannot is told with the command that fixes it."""
    try:
        root = LogDirectory.from_url(log_url).root
        if log_exists(log_url):
            open_reader(log_url).state()
    except ParallelApplyError as error:
        return (_finding(log_url, error.message, note=error.hint or ""),)
    existing = nearest(root)
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        try:
            return () if _links(existing) else (_no_links(existing),)
        except OSError as error:
            what = f"{existing} takes no files: {error.strerror}"
            return (_finding(str(existing), what, note="Use another directory for the log, or fix its file system."),)
    path = shlex.quote(str(root))
    return (
        _finding(
            str(root),
            f"{existing} cannot be written by this process's user",
            f"sudo install -d -o {os.geteuid()} -g {os.getegid()} {path}",
        ),
    )


def nearest(path: Path) -> Path:
    """The directory itself, or the lowest one above it that exists."""
    while not path.exists():
        path = path.parent
    return path


@contextmanager
def probe(directory: Path) -> Iterator[Path]:
    """A file for others to look for; gone afterwards."""
    path = directory / f"{PROBE_PREFIX}{uuid.uuid4().hex}"
    path.touch(exist_ok=False)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _links(directory: Path) -> bool:
    """True if a hard link refuses a name that exists: law 7 rests on that."""
    with probe(directory) as first, probe(directory) as second:
        try:
            os.link(first, second)
        except FileExistsError:
            return True
        except OSError:
            return False
        return False


def _no_links(directory: Path) -> Finding:
    return _finding(
        str(directory),
        f"the file system of {directory} has no hard links that refuse an existing name",
        note="Use a local disk or NFS for the log.",
    )
