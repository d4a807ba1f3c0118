"""The result, for people and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.suite import NATIVE, Result


def print_result(console: Console, result: Result) -> None:
    """Print ratios, where the time went, and under which settings."""
    changes = result.history.changes
    console.print(
        f"{result.history.name}: {changes:,} row changes, {result.net_rows:,} net; {result.cores} cores for everything",
        highlight=False,
    )
    for side, told in result.durability.items():
        console.print(f"{side}: {', '.join(f'{name}={value}' for name, value in told.items())}", highlight=False)
    console.print("PostgreSQL's own apply and ours commit alike: synchronous_commit=off, fsync on", highlight=False)
    console.print(_ratios(result))
    console.print(_phases(result))
    console.print(_inside(result))
    console.print(
        f"capture alone: {result.capture_seconds:.2f} s, {changes / result.capture_seconds:,.0f} changes/s",
        highlight=False,
    )


def to_json(result: Result) -> str:
    """Every measurement."""
    native = _native_seconds(result)
    value: dict[str, Any] = {
        "settings": asdict(result.settings),
        "changes": result.history.changes,
        "net_rows": result.net_rows,
        "cores": result.cores,
        "durability": result.durability,
        "capture_seconds": result.capture_seconds,
        "inside": result.inside,
        "kinds": [
            {
                "name": kind.name,
                "seconds": kind.seconds,
                "median_seconds": kind.median_seconds,
                "changes_per_second": result.history.changes / kind.median_seconds,
                "ratio": native / kind.median_seconds,
                "phases": kind.median_run.phases if kind.median_run else {},
            }
            for kind in result.kinds
        ],
    }
    return json.dumps(value, indent=2)


def _ratios(result: Result) -> Table:
    table = Table(title="Medians", title_justify="left", box=None)
    table.add_column("what")
    for name in ("seconds", "changes/s", "× PostgreSQL", "all seconds"):
        table.add_column(name, justify="right")
    native = _native_seconds(result)
    for kind in result.kinds:
        table.add_row(
            kind.name,
            f"{kind.median_seconds:.2f}",
            f"{result.history.changes / kind.median_seconds:,.0f}",
            f"{native / kind.median_seconds:.2f}",
            " ".join(f"{one:.2f}" for one in kind.seconds),
        )
    return table


def _phases(result: Result) -> Table:
    measured = [(kind.name, run) for kind in result.kinds if (run := kind.median_run) is not None]
    names = list(dict.fromkeys(phase for _, run in measured for phase in run.phases))
    table = Table(
        title="Where the time goes: seconds of all lanes together (a lane waits for `stage` while it does not commit)",
        title_justify="left",
        box=None,
    )
    table.add_column("what")
    for name in ("units", *names):
        table.add_column(name, justify="right")
    for name, run in measured:
        table.add_row(name, str(run.units), *(f"{run.phases.get(phase, 0.0):.2f}" for phase in names))
    return table


def _inside(result: Result) -> Table:
    rows = int(result.inside["rows"])
    table = Table(
        title=f"Inside one Spark job, alone on the machine: half of the history, {rows:,} changes",
        title_justify="left",
        box=None,
    )
    table.add_column("step")
    table.add_column("seconds", justify="right")
    for name, seconds in result.inside.items():
        if name != "rows":
            table.add_row(name, f"{seconds:.2f}")
    return table


def _native_seconds(result: Result) -> float:
    return next(kind.median_seconds for kind in result.kinds if kind.name == NATIVE)
