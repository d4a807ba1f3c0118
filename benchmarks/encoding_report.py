"""Prints what `encoding` has measured."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.encoding import Encoding
from benchmarks.encoding_peers import FED
from benchmarks.encoding_ways import PLAIN_AVRO

_THREADS = ("1 thread, s", "rows/s", "cpu s", "2 threads, s", "gain", "cpu s")
_COLUMNS = (*_THREADS, "1 process, s", "2 processes, s", "beside 1 thread", "turns/s", "MB")


def print_encoding(console: Console, found: Sequence[Encoding]) -> None:
    """A table for each width."""
    for one in found:
        table = Table(
            title=f"{one.rows:,} {one.table} rows; two threads without a lock gain {one.ideal:.2f} ×; "
            f"beside such work another one has {one.free:,.0f} turns/s, beside a loop in Python {one.held:,.0f}",
            title_justify="left",
            box=None,
        )
        table.add_column("what")
        for name in _COLUMNS:
            table.add_column(name, justify="right")
        for line in one.lines:
            table.add_row(
                line.what,
                f"{line.seconds[1]:.2f}",
                f"{one.rows / line.seconds[1]:,.0f}",
                f"{line.cpu_seconds[1]:.2f}",
                f"{line.seconds[2]:.2f}",
                f"{line.gain:.2f} ×",
                f"{line.cpu_seconds[2]:.2f}",
                f"{line.process_seconds[1]:.2f}",
                f"{line.process_seconds[2]:.2f}",
                f"{line.process_gain:.2f} ×",
                f"{line.turns:,.0f}",
                f"{line.byte_count / 2**20:,.0f}",
            )
        for peer in one.peers:
            turns = "" if peer.turns is None else f"{peer.turns:,.0f}"
            rate, size = f"{one.rows / peer.seconds:,.0f}", f"{peer.byte_count / 2**20:,.0f}"
            between = [""] * (len(_COLUMNS) - 5)
            table.add_row(peer.what, f"{peer.seconds:.2f}", rate, f"{peer.cpu_seconds:.2f}", *between, turns, size)
        console.print(table)
        for text in summary(one):
            console.print(text, highlight=False)


def summary(found: Encoding) -> list[str]:
    """The ratios of one table: what a second worker gains, and ours beside encoders by rows."""
    gains = sorted((line.gain, line.what) for line in found.lines)
    by_processes = sorted((line.process_gain, line.what) for line in found.lines)
    lines = [
        f"{found.table} rows: 2 threads gain at least {gains[0][0]:.2f} × ({gains[0][1]}), "
        f"median {median(gain for gain, _ in gains):.2f} ×; 2 processes at least {by_processes[0][0]:.2f} × "
        f"({by_processes[0][1]}), median {median(gain for gain, _ in by_processes):.2f} ×; "
        f"threads without a lock {found.ideal:.2f} ×"
    ]
    ours = {line.what: line for line in found.lines}
    peers = {line.what: line for line in found.peers}
    for name, peer in ((PLAIN_AVRO, "fastavro"), ("json", "orjson")):
        line, alone, fed = ours[name], peers[peer], peers[FED.format(peer)]
        lines.append(
            f"{name}, {found.table} rows, 1 worker: {alone.seconds / line.seconds[1]:.1f} × {peer}, "
            f"{fed.seconds / line.seconds[1]:.1f} × with the making of its rows; in processor seconds "
            f"{alone.cpu_seconds / line.cpu_seconds[1]:.1f} × and {fed.cpu_seconds / line.cpu_seconds[1]:.1f} ×"
        )
    return lines
