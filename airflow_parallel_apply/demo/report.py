"""The demo's last page: how the run ended, where the time went, and whether both sides are equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pendulum
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_parallel_apply.demo.airflow_api import TaskInstance
from airflow_parallel_apply.pipeline.admin.status import PipelineStatus
from airflow_parallel_apply.pipeline.compare import TableComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All that the report says. `lanes`: the lanes' XComs; `closed`: that of the task close."""

    state: str
    tasks: tuple[TaskInstance, ...]
    lanes: tuple[Mapping[str, Any], ...]
    captured: Mapping[str, Any]
    closed: Mapping[str, Any]
    status: PipelineStatus | None
    tables: tuple[TableComparison, ...]

    @property
    def equal(self) -> bool:
        """True if there are tables, and all of them are the same on both sides."""
        return bool(self.tables) and all(table.equal for table in self.tables)

    @property
    def stopped_cleanly(self) -> bool:
        """True if all channels stand at one seqno."""
        return self.status is not None and len({channel.seqno for channel in self.status.channels}) == 1

    @property
    def good(self) -> bool:
        """True if the demo succeeded."""
        return self.state == "success" and self.equal and self.stopped_cleanly


def print_report(console: Console, outcome: Outcome) -> None:
    """Print it."""
    for part in (_where_time_went(outcome.tasks), _lanes(outcome.lanes), _channels(outcome.status), _tables(outcome)):
        if part is not None:
            console.print(part)
            console.print()
    for line in _throughput(outcome):
        console.print(line, highlight=False)
    for one in outcome.tables:
        for found in (one.problem, *one.differences):
            if found is not None:
                console.print(f"  {one.name}: {found}", style="red", markup=False)
    verdict = (
        Text("The run is green, every channel stopped at one seqno, and all tables are equal.", style="bold green")
        if outcome.good
        else Text(f"Not as it should be: {'; '.join(_complaints(outcome))}.", style="bold red")
    )
    console.print(verdict)


def _where_time_went(tasks: Sequence[TaskInstance]) -> Table:
    table = Table(title="Where the time went: Airflow's tasks", title_justify="left", box=None)
    table.add_column("task")
    table.add_column("state")
    table.add_column("began after", justify="right")
    table.add_column("took", justify="right")
    begun = [task.start for task in tasks if task.start is not None]
    for task in tasks:
        took = task.duration
        table.add_row(
            task.name if task.map_index < 0 else f"{task.task_id} ({task.name})",
            Text(task.state or "none", style="green" if task.state == "success" else "yellow"),
            "" if task.start is None else f"{(task.start - min(begun)).total_seconds():.1f} s",
            "" if took is None else f"{took.total_seconds():.1f} s",
        )
    return table


def _lanes(lanes: Sequence[Mapping[str, Any]]) -> Table | None:
    if not lanes:
        return None
    phases: Counter[str] = Counter()
    for lane in lanes:
        phases.update(lane.get("seconds", {}))
    table = Table(title="and inside the lanes (seconds)", title_justify="left", box=None)
    for name in ("lane", "channels", "units", "changes", "captured", *phases):
        table.add_column(name, justify="right")
    for lane in sorted(lanes, key=lambda one: int(one["lane"])):
        table.add_row(
            str(lane["lane"]),
            ", ".join(map(str, lane.get("channels", ()))),
            str(lane.get("units", "")),
            f"{lane.get('rows', 0):,}",
            f"{lane.get('captured_rows', 0):,}",
            *(f"{lane.get('seconds', {}).get(phase, 0.0):.1f}" for phase in phases),
        )
    return table


def _channels(status: PipelineStatus | None) -> Table | None:
    if status is None:
        return None
    table = Table(title="Clean shutdown", title_justify="left", box=None)
    for name in ("channel", "stopped at seqno", "changes applied"):
        table.add_column(name, justify="right")
    for channel in status.channels:
        table.add_row(str(channel.channel), f"{channel.seqno:,}", f"{channel.rows:,}")
    return table


def _tables(outcome: Outcome) -> Table | None:
    if not outcome.tables:
        return None
    table = Table(title="Source and target compared", title_justify="left", box=None)
    table.add_column("table")
    for name in ("rows at the source", "rows at the target"):
        table.add_column(name, justify="right")
    for name in ("checksum at the source", "checksum at the target", ""):
        table.add_column(name)
    for one in outcome.tables:
        table.add_row(
            one.name,
            _count(one.source_rows),
            _count(one.target_rows),
            one.source_checksum or "-",
            one.target_checksum or "-",
            Text("equal", style="green") if one.equal else Text("different", style="bold red"),
        )
    return table


def _throughput(outcome: Outcome) -> list[str]:
    rows = int(outcome.closed.get("rows", 0))
    if not rows:
        return []
    parts = [
        ("the whole run", [task for task in outcome.tasks if task.start is not None]),
        ("the lanes", [task for task in outcome.tasks if task.task_id == "apply" and task.start is not None]),
    ]
    lines = [f"{rows:,} changes applied, stopped at seqno {outcome.closed.get('stop_seqno'):,}:"]
    for what, tasks in parts:
        seconds = _span(tasks)
        if seconds:
            lines.append(f"  {rows / seconds:>10,.0f} changes/s over {what} ({seconds:.1f} s)")
    return lines


def _span(tasks: Sequence[TaskInstance]) -> float:
    """Seconds from the first start to the last end."""
    starts: list[pendulum.DateTime] = [task.start for task in tasks if task.start is not None]
    ends: list[pendulum.DateTime] = [task.end for task in tasks if task.end is not None]
    return (max(ends) - min(starts)).total_seconds() if starts and ends else 0.0


def _complaints(outcome: Outcome) -> list[str]:
    complaints = []
    if outcome.state != "success":
        complaints.append(f"the run ended as {outcome.state}")
    if not outcome.stopped_cleanly:
        complaints.append("the channels are not at one seqno")
    different = [table.name for table in outcome.tables if not table.equal]
    if different or not outcome.tables:
        complaints.append(f"these tables differ: {', '.join(different)}" if different else "nothing was compared")
    return complaints


def _count(rows: int | None) -> str:
    return "-" if rows is None else f"{rows:,}"
