"""Warnings of a pipeline's status, given before there is trouble: its stream, its log's disk, torn transactions."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.log.directory import file_errors
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side
from airflow_parallel_apply.pipeline.source.open import source_connector
from airflow_parallel_apply.pipeline.target.protocol import Pending

MUCH_RETAINED_BYTES: Final = 2 * 2**30
_LITTLE_DISK: Final = 0.1
"""Free part of a file system below which it counts as nearly full."""


def torn_warnings(low: int, high: int, *, is_owned: bool) -> Sequence[Finding]:
    """Law 4: while a run goes on, parts of transactions are on their way; without one they stay torn until the next."""
    if high <= low or is_owned:
        return ()
    return (
        Finding(
            severity=Severity.WARNING,
            side=Side.TARGET,
            where=f"seqno {low + 1} to {high}",
            what=f"transactions {low + 1} to {high} are torn: some channels have them, others not, and no run is alive",
            note="The next run makes them whole.",
        ),
    )


def pending_warnings(pending: Pending, *, is_owned: bool) -> Sequence[Finding]:
    """Warn of branches that a run prepared before it was cut off: they hold rows locked, and keep the server from
    cleaning up.
    """
    if is_owned or not pending:
        return ()
    decided = pending.decided
    what = f"{pending.branches} prepared branches of a run that was cut off hold locks"
    if decided is not None:
        what += f", and of transactions {decided[0]} to {decided[1]} a part is committed"
    return (
        Finding(
            severity=Severity.WARNING,
            side=Side.TARGET,
            where="prepared branches",
            what=what,
            note="The next run ends them; parallel-apply recover does it now.",
        ),
    )


def disk_warnings(root: Path, log_bytes: int) -> Sequence[Finding]:
    """Warn of a log's file system that is nearly full, as this process sees it. `root`: the log's directory."""
    with file_errors(root):
        disk = shutil.disk_usage(root)
    if disk.free >= disk.total * _LITTLE_DISK:
        return ()
    return (
        Finding(
            severity=Severity.WARNING,
            side=Side.LOG,
            where=str(root),
            what=f"the log's disk is nearly full: {disk.free / 2**20:,.0f} MB of {disk.total / 2**20:,.0f} MB are "
            f"free, the log takes {log_bytes / 2**20:,.0f} MB",
            note="parallel-apply purge removes what is applied.",
        ),
    )


def stream_warnings(source: Endpoint, stream: str, *, much_retained_bytes: int) -> Sequence[Finding]:
    """A source that does not answer is told of, and the rest of the status all the same."""
    try:
        return source_connector(source).warnings(source, stream, much_retained_bytes=much_retained_bytes)
    except ParallelApplyError as error:
        return (
            Finding(
                severity=Severity.WARNING,
                side=Side.SOURCE,
                where=source.place,
                what=error.message,
                note=error.hint or "",
            ),
        )
