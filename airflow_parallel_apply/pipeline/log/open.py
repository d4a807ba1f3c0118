"""The ways into a log by its URL: a directory, or a router that serves one."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.log.directory import LogDirectory, file_errors, sync_directory
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.log.reader import DirectoryLogReader
from airflow_parallel_apply.service.address import is_service


def log_exists(url: str) -> bool:
    """True if there is a log. `ConfigurationError` for a URL that no log can have, `Unavailable` where its router is
    away.
    """
    if is_service(url):
        # Late: who has the directory needs no Flight.
        from airflow_parallel_apply.pipeline.log.remote.reader import router_serves

        return router_serves(url)
    path = LogDirectory.from_url(url).identity_path
    with file_errors(path):
        return path.exists()


def sync_manifests(url: str) -> None:
    """Make durable which versions there are. A writer that died may have named one without that, and whoever lets the
    source go by what he reads there must not lose it. A router does so before it tells of a version.
    """
    if not is_service(url):
        sync_directory(LogDirectory.from_url(url).manifests)


def open_reader(url: str) -> LogReader:
    """A reader of an existing log; `LogError` when there is none or its manifests are damaged."""
    if is_service(url):
        from airflow_parallel_apply.pipeline.log.remote.reader import RemoteLogReader

        return RemoteLogReader(url)
    return DirectoryLogReader(LogDirectory.from_url(url))


def reader_if_there(url: str) -> LogReader | None:
    """A reader, or None where there is no log; `LogError` when its manifests are damaged."""
    return open_reader(url) if log_exists(url) else None
