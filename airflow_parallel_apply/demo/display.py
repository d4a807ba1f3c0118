"""The demo's display while it runs: steps, bars, and the channels live; plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from airflow_parallel_apply.cli.status_view import Rates, status_view
from airflow_parallel_apply.pipeline.admin.status import PipelineStatus

_PLAIN_SECONDS: Final = 3.0


class Display:
    """The demo's face. `clock` gives monotonic seconds."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self._clock = clock
        self._began = clock()

    def say(self, text: str) -> None:
        """One line with the seconds since the start."""
        self.console.print(f"[dim]{self._clock() - self._began:6.1f} s[/dim]  {text}", highlight=False, soft_wrap=True)

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """A progress bar; gives the function that takes how much is done."""
        if not self.console.is_terminal:
            yield self._plain_bar(title, total)
            return
        columns = (
            TextColumn("         {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(title, total=total)
            yield lambda done: progress.update(task, completed=done)

    @contextmanager
    def channels(self) -> Iterator[ChannelsView]:
        """The live table of channels."""
        if not self.console.is_terminal:
            yield ChannelsView(clock=self._clock, say=self.say, live=None)
            return
        with Live(console=self.console, transient=True, auto_refresh=False) as live:
            yield ChannelsView(clock=self._clock, say=self.say, live=live)

    def _plain_bar(self, title: str, total: int) -> Callable[[int], None]:
        said = self._clock()

        def update(done: int) -> None:
            nonlocal said
            if done >= total or self._clock() - said >= _PLAIN_SECONDS:
                said = self._clock()
                self.say(f"{title}: {done:,} of {total:,}")

        return update


class ChannelsView:
    """Channels as they go on: seqno, changes a second, lag, state, what they wait for."""

    def __init__(self, *, clock: Callable[[], float], say: Callable[[str], None], live: Live | None) -> None:
        self._clock = clock
        self._say = say
        self._live = live
        self._said_at = float("-inf")
        self._said = ""
        self._rates = Rates()

    def show(self, status: PipelineStatus | None, tasks: str) -> None:
        """Show the present state; `tasks` says which tasks run. None: the pipeline is not open yet."""
        if self._live is not None:
            shown = () if status is None else (status_view(status, self._rates.of(status, self._clock())),)
            self._live.update(Group(Text(tasks, style="dim"), *shown), refresh=True)
        elif self._clock() - self._said_at >= _PLAIN_SECONDS:
            line = tasks if status is None else _line(status, self._rates.of(status, self._clock()), tasks)
            if line != self._said:
                self._said_at, self._said = self._clock(), line
                self._say(line)


def _line(status: PipelineStatus, rates: Mapping[int, float], tasks: str) -> str:
    """Everything in one line; channels only while there is a run that moves them."""
    if status.owner is None or status.phase == "idle":
        captured = status.captured_seqno
        return f"{tasks}; " + ("the log is empty" if captured < 0 else f"in the log to seqno {captured:,}")
    channels = (
        f"{one.channel}: seqno {one.seqno:,} {rates.get(one.channel, 0.0):,.0f}/s lag {one.lag_transactions:,} "
        f"{one.state}{' for ' + one.waits_for if one.waits_for else ''}"
        for one in status.channels
    )
    return f"{tasks}; {status.phase}; {' | '.join(channels)}"
