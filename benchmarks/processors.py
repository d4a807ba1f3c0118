"""Processor seconds of a measurement: servers, Spark and lanes together, whatever else the machine does meanwhile."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_LANES: Final = "lanes"
_COMPILER: Final = "JVM's compiler"

_MOST_LOOKS: Final = 20
"""Looks at all processes, until none of them ended meanwhile: a server counts its ended sessions."""


class Meter:
    """Tells processor seconds so far; a measurement calls it as it begins and as it ends."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._looks: list[dict[str, float]] = []

    def __call__(self) -> float:
        """As `processor_seconds`."""
        self._looks.append(seconds_by_kind(self._directory))
        return sum(self._looks[-1].values())

    @property
    def spent(self) -> dict[str, float]:
        """Seconds between the first call and the last, by kind of process."""
        if not self._looks:
            return {}
        first, last = self._looks[0], self._looks[-1]
        return {kind: seconds - first.get(kind, 0.0) for kind, seconds in last.items()}


def processor_seconds(directory: Path) -> float:
    """Seconds so far of this process and its children, and of all processes that work below `directory`, each with its
    ended children. Two calls, and nothing but the measurement between them, tell its price.
    """
    return sum(seconds_by_kind(directory).values())


def seconds_by_kind(directory: Path) -> dict[str, float]:
    """The same by kind of process: lanes (with this process), the two servers, Spark's JVM, what that compiles, and
    Spark's Python.
    """
    own, root = os.times(), directory.resolve()
    ours = own.user + own.system + own.children_user + own.children_system
    for _ in range(_MOST_LOOKS):
        listed = _processes()
        found = _look(root, listed, ours)
        # A session that ended between the look at its server and its own was in neither.
        if listed <= _processes():
            break
    return found


def _look(root: Path, listed: Collection[str], ours: float) -> dict[str, float]:
    found = {_LANES: ours}
    for entry in (Path("/proc", number) for number in listed):
        if int(entry.name) == os.getpid():
            continue
        try:
            is_child = int(_fields(entry)[1]) == os.getpid()
            place = (entry / "cwd").readlink()
            if not (is_child or place.is_relative_to(root)):
                continue
            kind = _kind(entry, place.relative_to(root)) if place.is_relative_to(root) else _LANES
            seconds = seconds_of(int(entry.name))
            compiling = _compiling_seconds(entry) if kind == "JVM" else 0.0
        except OSError:  # it ended while we looked
            continue
        found[kind] = found.get(kind, 0.0) + seconds - compiling
        if compiling:
            found[_COMPILER] = found.get(_COMPILER, 0.0) + compiling
    return found


def _processes() -> set[str]:
    """The numbers of those that are there."""
    return {entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()}


def seconds_of(process_id: int) -> float:
    """Seconds so far of one process, with its ended children. Errors: `OSError` where it is gone."""
    return sum(map(int, _fields(Path("/proc") / str(process_id))[11:15])) / _TICKS


def _kind(process: Path, place: Path) -> str:
    """`place`: its working directory below that of the benchmark."""
    server = next((name for name in ("source", "target") if name in place.parts), None)
    if server is not None:
        return server
    command = (process / "cmdline").read_bytes()
    return "JVM" if b"SparkConnectServer" in command else "Spark's Python" if b"pyspark" in command else "others"


def _compiling_seconds(process: Path) -> float:
    """Those of the threads of a JVM that compile."""
    found = 0.0
    for thread in (process / "task").iterdir():
        # Threads of tasks come and go.
        with suppress(OSError):
            if (thread / "comm").read_text().startswith(("C1 Compiler", "C2 Compiler")):
                found += sum(map(int, _fields(thread)[11:13])) / _TICKS
    return found


def _fields(process: Path) -> list[str]:
    """A process's line, behind its name in parentheses: from field 3 on. The parent is 4, times are 14 to 17."""
    return (process / "stat").read_text().rpartition(")")[2].split()
