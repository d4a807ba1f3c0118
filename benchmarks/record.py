"""Measurements of `workloads`, kept as lines of JSON: a run that is cut off goes on behind the last whole history."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

_NATIVE: Final = "native"
_CHANNEL: Final = "channel"
_SHOWN: Final = 0.01
_PROTOCOLS: Final = ("leader_merge", "two_phase")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run. `units` and `phases` (seconds of all lanes together): of ours."""

    seconds: float
    processor_seconds: float
    processors: Mapping[str, float] = field(default_factory=dict)
    """Those seconds by kind of process; empty where an older version measured."""
    units: int = 0
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One history's result, by way. `peak_bytes`: the most memory of one process of each kind."""

    name: str
    title: str
    changes: int
    ways: Mapping[str, tuple[Measured, ...]]
    peak_bytes: Mapping[str, int]

    def median_seconds(self, way: str) -> float:
        """The median of a way's runs."""
        return median(one.seconds for one in self.ways[way])

    def ratio(self, way: str, to: str) -> float | None:
        """How many times as fast a way is as another; None where one of both was not measured."""
        if way not in self.ways or to not in self.ways:
            return None
        return self.median_seconds(to) / self.median_seconds(way)


def add_line(file: Path, found: Workload) -> None:
    """Append a history's result."""
    with file.open("a") as lines:
        lines.write(json.dumps(asdict(found)) + "\n")


def read_lines(file: Path) -> list[Workload]:
    """All results of a file, none where it is not there."""
    if not file.exists():
        return []
    return [_from_json(json.loads(line)) for line in file.read_text().splitlines() if line]


def print_workload(console: Console, found: Workload) -> None:
    """Ratios, phases, memory."""
    table = Table(title=f"{found.name}: {found.title}", title_justify="left", box=None)
    table.add_column("what")
    for name in ("changes/s", "× PostgreSQL", "processor s", "all seconds"):
        table.add_column(name, justify="right")
    for way, runs in found.ways.items():
        table.add_row(
            way,
            f"{found.changes / found.median_seconds(way):,.0f}",
            _told(found.ratio(way, _NATIVE)),
            f"{median(one.processor_seconds for one in runs):.2f}",
            " ".join(f"{one.seconds:.2f}" for one in runs),
        )
    console.print(table)
    for way, runs in found.ways.items():
        middle = sorted(runs, key=lambda one: one.seconds)[(len(runs) - 1) // 2]
        if middle.phases:
            phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in middle.phases.items())
            console.print(f"  {way}: {middle.units} units; seconds of all lanes: {phases}", highlight=False)
    for way, runs in found.ways.items():
        kinds = dict.fromkeys(kind for one in runs for kind in one.processors)
        medians = {kind: median(one.processors.get(kind, 0.0) for one in runs) for kind in kinds}
        if medians:
            told = ", ".join(f"{kind} {seconds:.2f}" for kind, seconds in sorted(medians.items()) if seconds >= _SHOWN)
            console.print(f"  {way}: processor seconds, medians: {told}", highlight=False)
    peaks = ", ".join(f"{kind} {peak / 1e6:,.0f} MB" for kind, peak in sorted(found.peak_bytes.items()))
    console.print(f"  memory at most, of one process: {peaks}", highlight=False)


def print_summary(console: Console, found: Sequence[Workload]) -> None:
    """One line for each history: each way × PostgreSQL's own, and what `epoch` costs over `channel`."""
    ways = [way for way in dict.fromkeys(way for one in found for way in one.ways) if way != _NATIVE]
    table = Table(title="× PostgreSQL's own, medians", title_justify="left", box=None)
    table.add_column("history")
    for name in ("PostgreSQL's changes/s", *ways, "faster protocol", "its cost over channel"):
        table.add_column(name, justify="right")
    for one in found:
        faster = min((way for way in _PROTOCOLS if way in one.ways), key=one.median_seconds, default=None)
        cost = None if faster is None else one.ratio(_CHANNEL, faster)
        table.add_row(
            one.name,
            f"{one.changes / one.median_seconds(_NATIVE):,.0f}" if _NATIVE in one.ways else "",
            *(_told(one.ratio(way, _NATIVE)) for way in ways),
            faster or "",
            "" if cost is None else f"{cost - 1:+.0%}",
        )
    console.print(table)


def _told(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _from_json(value: dict[str, object]) -> Workload:
    ways = value["ways"]
    if not isinstance(ways, dict):
        raise TypeError("ways is no object")
    measured = {way: tuple(Measured(**one) for one in runs) for way, runs in ways.items()}
    return Workload(**{**value, "ways": measured})  # type: ignore[arg-type]
