"""A note beside a log: how far the initial copy into it has come. For people; no run goes by it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

from airflow_parallel_apply.pipeline.log.directory import LogDirectory
from airflow_parallel_apply.service.address import is_service


def write_copy_note(url: str, note: dict[str, Any]) -> None:
    """Replace it. What the file system refuses is no reason to stop a copy."""
    path = LogDirectory.from_url(url).copy_note
    temporary = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        temporary.write_text(json.dumps(note), "utf-8")
        temporary.replace(path)


def read_copy_note(url: str) -> dict[str, Any] | None:
    """None where there is none, or the log is a router's."""
    if is_service(url):
        return None
    try:
        found: dict[str, Any] = json.loads(LogDirectory.from_url(url).copy_note.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found
