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

from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.log.directory import LogDirectory
from airflow_parallel_apply.pipeline.log.open import log_exists, open_reader, reader_if_there
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side, new_finding
from airflow_parallel_apply.pipeline.stream.address import place_of_log

PROBE_PREFIX: Final = ".parallel-apply-check-"

_finding: Final = partial(new_finding, Side.LOG)


def log_findings(config: PipelineConfig) -> tuple[Finding, ...]:
    """That this process can read the log, or make it where there is none; where a router serves it, that it answers."""
    if not config.is_served:
        return directory_findings(config.log_url)
    found = directory_findings(config.log_directory) if config.log_directory else ()
    return (*found, *router_findings(config))


def router_findings(config: PipelineConfig) -> tuple[Finding, ...]:
    """That the router can be reached and serves the log, and no other one than what lies in the directory. One that is
    yet to begin is served once it is there.
    """
    place = place_of_log(config.log_url)
    try:
        served = reader_if_there(config.log_url)
        has_directory = bool(config.log_directory) and log_exists(config.log_directory)
        captured = open_reader(config.log_directory).identity.log_id if has_directory else None
    except ParallelApplyError as error:
        return (_finding(place, error.message, note=error.hint or ""),)
    if served is not None and captured in (None, served.identity.log_id):
        return ()
    if served is None and captured is None:
        what, note = f"{place} serves no such log yet", "Its directory appears when the first run has captured."
        return (Finding(severity=Severity.WARNING, side=Side.LOG, where=place, what=what, note=note),)
    held = "no log" if served is None else f"log {served.identity.log_id}"
    return (
        _finding(
            place,
            f"the router serves {held} there, and {config.log_directory} holds "
            + ("none" if captured is None else f"log {captured}"),
            note="Let the router serve log_directory under the name that ends log_url: --log NAME=DIRECTORY.",
        ),
    )


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
