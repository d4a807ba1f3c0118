"""`python -m benchmarks queue-latency`: a queue of a million tasks behind the service, watched and not.

Clients claim and change tasks at a fixed rate, each call of one task, so that the queue stays as large as it is; what
is measured is how long a call takes, not how many go. Then the service is killed, and recovers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from time import monotonic, perf_counter
from typing import Final

from rich.console import Console
from rich.table import Table

from airflow_parallel_apply.queue import Change, Insert, open_queue
from benchmarks.queues.contenders import serving
from benchmarks.queues.settings import QueueBenchSettings

_QUEUE: Final = "large"
_LEASE: Final = timedelta(minutes=30)
_FILL_BATCH: Final = 1000
_TAIL_BATCH: Final = 500
_QUANTILES: Final = (0.5, 0.95, 0.99, 0.999)
_NOBODY: Final = "nobody looks"
_WATCHED: Final[dict[str, float | None]] = {
    _NOBODY: None,
    "statistics and a page, 10 a second": 0.1,
    "statistics, pages without a pause": 0.0,
}
"""The pause between pages. The last line takes as much of the service as one client can get."""
_TURNS: Final = 3
"""In turns, so that what else the machine does meets all alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Seconds of each call, while somebody looked or nobody did."""

    watched: str
    claims: list[float] = field(default_factory=list)
    modifies: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    looks: list[tuple[int, int]] = field(default_factory=list)
    """Statistics and pages that were got."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Large:
    """The latencies that were measured."""

    latencies: Sequence[Latencies]
    fill_seconds: float
    bytes_per_task: float
    snapshot_seconds: float
    tail_changes: int
    recovery_seconds: float


def measure(directory: Path, settings: QueueBenchSettings, say: Callable[[str], None]) -> Large:
    """Errors: those of the queue; `Unavailable`, when the service does not start."""
    data = directory / "large"
    data.mkdir()
    with serving(data) as served:
        empty_bytes = _resident_bytes(served.pid)
        say(f"filling the queue with {settings.large_tasks:,} tasks")
        began = monotonic()
        _fill(served.url, settings)
        fill_seconds = monotonic() - began
        bytes_per_task = (_resident_bytes(served.pid) - empty_bytes) / settings.large_tasks
        latencies = [Latencies(watched=watched) for watched in _WATCHED]
        for turn in range(_TURNS):
            for one in latencies:
                say(f"{one.watched}, {turn + 1} of {_TURNS}")
                _measure(served.url, settings, one)
        with closing(open_queue(served.url)) as queue:
            began = monotonic()
            queue.snapshot()  # type: ignore[attr-defined]  # of the service's client alone
            snapshot_seconds = monotonic() - began
        say("writing a tail of the log, and killing the service")
        tail = _write_tail(served.url, settings)
        os.kill(served.pid, signal.SIGKILL)
    began = monotonic()
    with serving(data) as served, closing(open_queue(served.url)) as queue:
        recovery_seconds = monotonic() - began
        (found,) = queue.queue_stats()
        if found.size != settings.large_tasks:
            raise SystemExit(f"{found.size:,} tasks are there instead of {settings.large_tasks:,}")
    return Large(
        latencies=latencies,
        fill_seconds=fill_seconds,
        bytes_per_task=bytes_per_task,
        snapshot_seconds=snapshot_seconds,
        tail_changes=tail,
        recovery_seconds=recovery_seconds,
    )


def print_large(console: Console, settings: QueueBenchSettings, found: Large) -> None:
    """The table, the ratios, the rest."""
    table = Table(
        title=f"{settings.large_tasks:,} tasks of {settings.value_bytes} bytes; {settings.large_workers} clients, "
        f"{settings.large_rate} claims and as many modifies a second; milliseconds",
        title_justify="left",
        box=None,
    )
    table.add_column("while")
    table.add_column("call")
    for name in ("p50", "p95", "p99", "p99.9", "calls", "load"):
        table.add_column(name, justify="right")
    for one in found.latencies:
        for call, seconds in (("claim", one.claims), ("modify", one.modifies)):
            quantiles = [f"{1000 * quantile(seconds, share):.1f}" for share in _QUANTILES]
            table.add_row(one.watched, call, *quantiles, f"{len(seconds):,}", f"{sum(one.loads) / len(one.loads):.1f}")
    console.print(table)
    alone = next(one for one in found.latencies if one.watched == _NOBODY)
    for one in found.latencies:
        if one is not alone:
            claims, modifies = (
                quantile(getattr(one, call), 0.99) / quantile(getattr(alone, call), 0.99)
                for call in ("claims", "modifies")
            )
            statistics, pages = (sum(counts) for counts in zip(*one.looks, strict=True))
            console.print(
                f"{one.watched}: p99 of claims × {claims:.2f}, of modifies × {modifies:.2f} (aim: below 1.5); "
                f"{statistics:,} statistics and {pages:,} pages were got",
                highlight=False,
            )
    console.print(
        f"filled in {found.fill_seconds:.0f} s; {found.bytes_per_task:,.0f} bytes of the service's memory a task; "
        f"a snapshot while it serves takes {found.snapshot_seconds:.1f} s",
        highlight=False,
    )
    console.print(
        f"killed and started anew: {found.recovery_seconds:.1f} s, from snapshot and {found.tail_changes:,} changes of "
        "tasks behind it",
        highlight=False,
    )


def quantile(seconds: Sequence[float], share: float) -> float:
    """The nearest that was measured."""
    return sorted(seconds)[min(int(share * len(seconds)), len(seconds) - 1)]


def _fill(url: str, settings: QueueBenchSettings) -> None:
    value = {"pad": "x" * max(settings.value_bytes - 11, 0)}

    def insert(count: int) -> None:
        queue.modify(claimant="filler", insert=[Insert(queue=_QUEUE, value=value) for _ in range(count)])

    counts = [min(_FILL_BATCH, settings.large_tasks - start) for start in range(0, settings.large_tasks, _FILL_BATCH)]
    with closing(open_queue(url)) as queue, ThreadPoolExecutor(2) as pool:
        list(pool.map(insert, counts))


def _measure(url: str, settings: QueueBenchSettings, into: Latencies) -> None:
    """One turn."""
    into.loads.append(os.getloadavg()[0])
    with _looking(url, into), ThreadPoolExecutor(settings.large_workers) as pool:
        for one in [
            pool.submit(_work, url, settings, f"worker {number}", into) for number in range(settings.large_workers)
        ]:
            one.result()


def _work(url: str, settings: QueueBenchSettings, name: str, into: Latencies) -> None:
    """At a fixed rate; a call that takes longer than its turn is not made up for."""
    step = settings.large_workers / settings.large_rate
    end = monotonic() + settings.large_seconds / _TURNS
    pause = threading.Event()
    with closing(open_queue(url)) as queue:
        queue.queue_stats()
        turn = monotonic()
        while turn < end:
            began = perf_counter()
            task = queue.try_claim([_QUEUE], claimant=name, lease=_LEASE)
            claimed = perf_counter()
            if task is None:
                raise SystemExit("nothing to claim")
            queue.modify(claimant=name, change=[Change(ref=task.ref, value=task.value)])
            into.modifies.append(perf_counter() - claimed)
            into.claims.append(claimed - began)
            turn = max(turn + step, monotonic())
            pause.wait(max(turn - monotonic(), 0.0))


@contextmanager
def _looking(url: str, into: Latencies) -> Iterator[None]:
    """With an observer, or with nobody."""
    pause = _WATCHED[into.watched]
    if pause is None:
        yield
        return
    observer = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.queues.observer", url, _QUEUE, str(pause)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert observer.stdout is not None
        observer.stdout.readline()
        yield
        out, _ = observer.communicate("", timeout=60)
        statistics, pages = map(int, out.split())
        into.looks.append((statistics, pages))
    finally:
        observer.kill()
        observer.wait()


def _write_tail(url: str, settings: QueueBenchSettings) -> int:
    """Change a tenth of the tasks, as the log behind the snapshot: how many changes of tasks."""
    count = 0
    with closing(open_queue(url)) as queue:
        while count < settings.large_tasks // 10:
            tasks = queue.claim_many([_QUEUE], claimant="tail", lease=_LEASE, limit=_TAIL_BATCH)
            queue.modify(claimant="tail", change=[Change(ref=task.ref, value=task.value) for task in tasks])
            count += 2 * len(tasks)
    return count


def _resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0
