"""A pipeline's status for a terminal, with rates between two looks."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from airflow_parallel_apply.pipeline.admin.channel_status import ChannelState
from airflow_parallel_apply.pipeline.admin.status import PipelineStatus
from airflow_parallel_apply.pipeline.model.finding import Severity, Side
from airflow_parallel_apply.pipeline.model.rework import ReworkKind
from airflow_parallel_apply.pipeline.partition.skew import cost_of_skew

_STYLES = {
    ChannelState.APPLYING: "green",
    ChannelState.FAILED: "bold red",
    ChannelState.BEHIND_FAILURE: "red",
    ChannelState.AT_BARRIER: "yellow",
    ChannelState.AT_MERGE_POINT: "yellow",
    ChannelState.WAITING: "cyan",
}


@dataclass(slots=True)
class Rates:
    """Changes per second by channel, from one look to the next."""

    _rows: dict[int, int] = field(default_factory=dict)
    _at: float | None = None

    def of(self, status: PipelineStatus, now_seconds: float) -> dict[int, float]:
        """Since the last call; none at the first. `now_seconds` is a monotonic clock's."""
        rows = {channel.channel: channel.rows for channel in status.channels}
        passed = now_seconds - self._at if self._at is not None else 0.0
        rates = {
            channel: max(count - self._rows[channel], 0) / passed
            for channel, count in rows.items()
            if passed > 0 and channel in self._rows
        }
        self._rows, self._at = rows, now_seconds
        return rates


def status_view(status: PipelineStatus, rates: dict[int, float]) -> RenderableType:
    """One table; below it what a person should know. Before the first stream: how far the initial copy is."""
    if status.copy is not None and not status.channels:
        lines: list[RenderableType] = [f"pipeline {status.pipeline}: initial copy, {status.copy}"]
        if status.failure is not None:
            lines.append(Text(f"{status.failure} It begins anew with the next run.", style="bold red"))
        return Group(*lines)
    title = f"pipeline {status.pipeline}: {status.phase}, captured seqno {status.captured_seqno}"
    table = Table(title=title, title_justify="left", box=None)
    for name in ("channel", "seqno", "changes/s", "lag (transactions)", "lag (changes)"):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("state", overflow="fold")
    table.add_column("waits for", overflow="fold")
    for channel in status.channels:
        table.add_row(
            str(channel.channel),
            f"{channel.seqno:,}",
            # One look tells no rate.
            f"{rates[channel.channel]:,.0f}" if channel.channel in rates else "",
            f"{channel.lag_transactions:,}",
            f"{channel.lag_rows:,}",
            Text(channel.state, style=_STYLES.get(channel.state, "")),
            # As text: an error's place stands in brackets, which are no markup.
            Text(channel.waits_for),
        )
    notes: list[RenderableType] = []
    if status.oldest_time is not None:
        age = datetime.now(UTC) - status.oldest_time
        notes.append(f"the oldest transaction that is not in every channel was committed {_age(age)} ago")
    if status.torn_from is not None and not any(warning.side is Side.TARGET for warning in status.warnings):
        notes.append(f"transactions {status.torn_from} to {status.torn_to} are in some channels and not yet in others")
    cost = cost_of_skew([channel.lag_rows for channel in status.channels])
    if cost is not None and status.commit is None:
        notes.append(f"of what waits, {cost}")
    if status.commit is not None:
        notes.append(f"consistency {status.consistency} ({status.epoch_protocol}): {status.commit}")
    for work in status.rework:
        where = "" if work.table is None else f" on {work.table}"
        what = "conflicts between channels" if work.kind is ReworkKind.MERGE_POINT else work.kind
        notes.append(f"{what}: {work.count:,} {work.reason}{where}, last up to seqno {work.last_seqno}")
    if status.store_choice is not None:
        notes.append(f"channels are read through the store {status.store_choice}")
    if status.store is not None:
        notes.append(str(status.store))
    if status.failure is not None:
        notes.append(Text(status.failure, style="bold red"))
    for warning in status.warnings:
        style = "bold red" if warning.severity is Severity.ERROR else "yellow"
        notes.append(Text(f"{warning.severity}: {warning.what}. {warning.note}", style=style))
        notes += [Text(f"  {warning.side}: {command}", no_wrap=True, overflow="ignore") for command in warning.fix]
    return Group(table, *notes)


def _age(age: timedelta) -> str:
    return str(timedelta(seconds=max(int(age.total_seconds()), 0)))
