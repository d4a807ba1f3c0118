"""`python -m benchmarks queue`: everybody does the same work, once or several times over, in turns."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from airflow_parallel_apply.demo.postgres import PostgresServer
from benchmarks.queues.contenders import BATCHED, POSTGRES, SERVER_SETTINGS, SERVICE, SINGLE, Place
from benchmarks.queues.peers import FEWER_WORKERS, PGQUEUER, PROCRASTINATE, Peers
from benchmarks.queues.settings import QueueBenchSettings
from benchmarks.queues.work import Spent, Work
from benchmarks.world import cpu_count

_WARM_TASKS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One contender's measurements; `loads` are the machine's load averages before each."""

    name: str
    spent: list[Spent]
    loads: list[float]

    @property
    def median(self) -> Spent:
        """By the sum of both halves."""
        return sorted(self.spent, key=lambda one: one.total)[len(self.spent) // 2]


def measure(directory: Path, settings: QueueBenchSettings, say: Callable[[str], None]) -> list[Line]:
    """Errors: `TargetError`, when somebody lost a task; `Unavailable`, when a peer cannot be had."""
    work = Work(tasks=settings.tasks, value_bytes=settings.value_bytes, workers=settings.workers, batch=settings.batch)
    warm = Work(tasks=_WARM_TASKS, value_bytes=settings.value_bytes, workers=settings.workers, batch=settings.batch)
    say("installing the peers into an environment of their own")
    peers = Peers.installed_in(directory / "peers")
    with PostgresServer(directory / "postgres", settings=SERVER_SETTINGS) as server:
        contenders = Place(directory=directory, server=server, peers=peers).contenders()
        lines = [Line(name=one.name, spent=[], loads=[]) for one in contenders]
        for turn in range(settings.repeats):
            for contender, line in zip(contenders, lines, strict=True):
                if turn == 0:
                    contender.measure(warm)
                line.loads.append(os.getloadavg()[0])
                spent = contender.measure(work)
                line.spent.append(spent)
                say(f"{line.name}: {spent.insert:.2f} s + {spent.work:.2f} s")
    return lines


def print_lines(console: Console, settings: QueueBenchSettings, lines: list[Line]) -> None:
    """The table, and what was aimed at."""
    by_name = {line.name: line.median for line in lines}
    peers = {name: spent for name, spent in by_name.items() if name.startswith((PROCRASTINATE, PGQUEUER))}
    best = min(peers, key=lambda name: peers[name].total)
    alike = min((name for name in peers if name not in FEWER_WORKERS), key=lambda name: peers[name].total)
    console.print(
        f"{settings.tasks:,} tasks of {settings.value_bytes} bytes, {settings.workers} workers, calls of 1 (single) or "
        f"{settings.batch} (batched, and all peers that can), median of {settings.repeats}; {cpu_count()} cores for "
        "everything; fsync on; work: claim and finish",
        highlight=False,
    )
    table = Table(box=None)
    table.add_column("queue")
    for name in ("insert/s", "work/s", "all/s", "× best peer", "load"):
        table.add_column(name, justify="right")
    for line in lines:
        spent = line.median
        table.add_row(
            line.name,
            f"{settings.tasks / spent.insert:,.0f}",
            f"{settings.tasks / spent.work:,.0f}",
            f"{settings.tasks / spent.total:,.0f}",
            f"{peers[best].total / spent.total:.2f}",
            f"{median(line.loads):.1f}",
        )
    console.print(table)
    console.print(f"best peer: {best}", highlight=False)
    for text, ours, other in (
        (
            "PostgreSQL backend, batched, × the better peer with as many workers (aim: 3)",
            f"{POSTGRES}, {BATCHED}",
            alike,
        ),
        (
            "PostgreSQL backend, batched, × the peer's best, with as many workers as suit it",
            f"{POSTGRES}, {BATCHED}",
            best,
        ),
        ("service × PostgreSQL backend, batched (aim: 1)", f"{SERVICE}, {BATCHED}", f"{POSTGRES}, {BATCHED}"),
        ("service × PostgreSQL backend, single (aim: 1)", f"{SERVICE}, {SINGLE}", f"{POSTGRES}, {SINGLE}"),
    ):
        console.print(f"{text}: {by_name[other].total / by_name[ours].total:.2f}", highlight=False)
