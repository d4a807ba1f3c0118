"""Makes logs, and opens their writers: capture's affair, and a purge's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.directory import LogDirectory, publish
from airflow_parallel_apply.pipeline.log.identity import identity_bytes, read_identity
from airflow_parallel_apply.pipeline.log.manifest import EMPTY_VIEW, Manifest
from airflow_parallel_apply.pipeline.log.manifest_file import manifest_bytes
from airflow_parallel_apply.pipeline.log.open import log_exists
from airflow_parallel_apply.pipeline.log.options import WriterOptions
from airflow_parallel_apply.pipeline.log.protocol import LogIdentity
from airflow_parallel_apply.pipeline.log.writer import DirectoryLogWriter

_DEFAULT_OPTIONS = WriterOptions()


def _utc_now() -> datetime:
    return datetime.now(UTC)


def create_log(url: str, identity: LogIdentity) -> None:
    """Make an empty log. `LogError` when one is there already, also when two processes try at once."""
    directory = LogDirectory.from_url(url)
    if not log_exists(url):
        directory.create_directories()
        # First the empty version 0, so that a log without manifests is always one that was damaged.
        empty = EMPTY_VIEW.state
        publish(
            directory.manifest_path(0),
            manifest_bytes(
                Manifest(
                    version=0,
                    checkpoint=True,
                    writer="",
                    created=identity.created,
                    added=(),
                    removed=(),
                    retired=(),
                    relations=(),
                    captured_offset=empty.captured_offset,
                    last_seqno=empty.last_seqno,
                    last_commit_time=None,
                )
            ),
        )
        if publish(directory.identity_path, identity_bytes(identity)):
            return
    raise LogError(f"{directory.root} already holds a log", hint="Open it, or choose another log_url.")


def open_writer(
    url: str,
    *,
    expected: LogIdentity | None = None,
    options: WriterOptions = _DEFAULT_OPTIONS,
    clock: Callable[[], datetime] = _utc_now,
) -> DirectoryLogWriter:
    """The writer of an existing log. Opening takes nothing from another writer: the first of two to commit wins.

    `expected` is what the log must be a log of; `created` and an empty `log_id` are not compared.
    `LogError` when it is another source's.
    """
    directory = LogDirectory.from_url(url)
    identity = read_identity(directory)
    if expected is not None:
        for field in fields(LogIdentity):
            ours, theirs = getattr(expected, field.name), getattr(identity, field.name)
            if field.name == "created" or (field.name == "log_id" and not ours):
                continue
            if ours != theirs:
                raise LogError(
                    f"{directory.root} is another source's log: its {field.name} is {theirs!r}, not {ours!r}",
                    hint="Use the log_url of this source, or a new directory.",
                )
    return DirectoryLogWriter(directory, identity, options=options, clock=clock)
