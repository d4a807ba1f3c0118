"""A log's identity: the stream of the source whose changes it holds, written once, into `log.json`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.checked_file import checked_body, checked_bytes, read_checked
from airflow_parallel_apply.pipeline.log.directory import LogDirectory
from airflow_parallel_apply.pipeline.log.protocol import LOG_FORMAT, LogIdentity
from airflow_parallel_apply.pipeline.model.former import STREAMS, in_words_of_now


def identity_bytes(identity: LogIdentity) -> bytes:
    """The content of `log.json`."""
    return checked_bytes(
        {
            "log_id": identity.log_id,
            "server": identity.server,
            "database": identity.database,
            "stream": identity.stream,
            "selection": identity.selection,
            "bucket_count": identity.bucket_count,
            "created": identity.created.isoformat(),
            "format": identity.format,
            "begins_empty": identity.begins_empty,
        }
    )


def read_identity(directory: LogDirectory) -> LogIdentity:
    """Read a log's identity. `LogError` when there is no log, or one that another version wrote."""
    return _require_format(read_any_identity(directory), str(directory.root))


def read_any_identity(directory: LogDirectory) -> LogIdentity:
    """As `read_identity`, of a log of any format."""
    return _identity(read_checked(directory.identity_path), str(directory.identity_path))


def identity_from(content: bytes, place: str) -> LogIdentity:
    """As `read_identity`, of a file whose content came from elsewhere; `place` says from where."""
    return _require_format(_identity(checked_body(content, place), place), place)


def _require_format(identity: LogIdentity, place: str) -> LogIdentity:
    """The identity; `LogError` where this version does not read its log."""
    if identity.format != LOG_FORMAT:
        raise LogError(
            f"{place} is a log of format {identity.format}, and this version knows {LOG_FORMAT}",
            hint="Run the pipeline to its end with the version that wrote it, `parallel-apply drop`, then start=equal.",
        )
    return identity


def _identity(content: dict[str, Any], place: str) -> LogIdentity:
    body = {"format": 1, **in_words_of_now(content, STREAMS)}
    try:
        return LogIdentity(**{**body, "created": datetime.fromisoformat(body["created"])})
    except (KeyError, TypeError, ValueError) as error:
        raise LogError(f"{place} is not a log's identity: {error!r}") from error
