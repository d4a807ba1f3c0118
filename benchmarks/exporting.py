"""Measures whole exports: a log's changes as files in each format, by 1 and 2 workers, from the log to the manifest."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from airflow_parallel_apply.pipeline.encode.formats import Format
from airflow_parallel_apply.pipeline.export import ExportOptions, export_changes
from airflow_parallel_apply.pipeline.log.open import open_reader
from benchmarks.encoding_peers import timed
from tests.support.tpcb_log import make_tpcb_log

_WORKERS: Final = (1, 2)
_CHANGES: Final = 4
"""Changes of a transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportLine:
    """One format: seconds and processor seconds by the number of workers."""

    format: Format
    seconds: dict[int, float]
    cpu_seconds: dict[int, float]
    byte_count: int


def measure_exports(directory: Path, transactions: int, *, repeats: int) -> list[ExportLine]:
    """Medians of `repeats`, by turns."""
    log_url = str(directory / "exported_log")
    make_tpcb_log(log_url, transactions)
    place = directory / "exported"
    seconds: dict[Format, dict[int, list[float]]] = {one: {workers: [] for workers in _WORKERS} for one in Format}
    cpu: dict[Format, dict[int, list[float]]] = {one: {workers: [] for workers in _WORKERS} for one in Format}
    sizes: dict[Format, int] = {}
    for _ in range(repeats):
        for one in Format:
            for workers in _WORKERS:
                spent, worked, sizes[one] = timed(partial(_export, log_url, place, one, workers))
                seconds[one][workers].append(spent)
                cpu[one][workers].append(worked)
                shutil.rmtree(place)
    return [
        ExportLine(
            format=one,
            seconds={workers: median(found) for workers, found in seconds[one].items()},
            cpu_seconds={workers: median(found) for workers, found in cpu[one].items()},
            byte_count=sizes[one],
        )
        for one in Format
    ]


def print_exports(console: Console, lines: Sequence[ExportLine], transactions: int) -> None:
    """One table."""
    changes = _CHANGES * transactions
    table = Table(title=f"an export of {changes:,} changes to files", title_justify="left", box=None)
    table.add_column("format")
    for name in ("1 worker, s", "changes/s", "cpu s", "2 workers, s", "gain", "cpu s", "MB"):
        table.add_column(name, justify="right")
    for line in lines:
        table.add_row(
            str(line.format),
            f"{line.seconds[1]:.2f}",
            f"{changes / line.seconds[1]:,.0f}",
            f"{line.cpu_seconds[1]:.2f}",
            f"{line.seconds[2]:.2f}",
            f"{line.seconds[1] / line.seconds[2]:.2f} ×",
            f"{line.cpu_seconds[2]:.2f}",
            f"{line.byte_count / 2**20:,.0f}",
        )
    console.print(table)


def _export(log_url: str, place: Path, format_: Format, workers: int) -> int:
    options = ExportOptions(format=format_, threads=workers)
    return export_changes(open_reader(log_url), str(place), options).bytes_
