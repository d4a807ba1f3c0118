"""Processor seconds of a measurement: servers, Spark and lanes together, whatever else the machine does meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(directory: Path) -> float:
    """Seconds so far of this process and its children, and of all processes that work below `directory`, each with its
    ended children. Two calls, and nothing but the measurement between them, tell its price.
    """
    own = os.times()
    return own.user + own.system + own.children_user + own.children_system + sum(_seconds_of(directory.resolve()))


def seconds_of(process_id: int) -> float:
    """Seconds so far of one process, with its ended children. Errors: `OSError` where it is gone."""
    return sum(map(int, _fields(Path("/proc") / str(process_id))[11:15])) / _TICKS


def _seconds_of(directory: Path) -> list[float]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            is_child = int(_fields(entry)[1]) == os.getpid()
            if is_child or (entry / "cwd").readlink().is_relative_to(directory):
                found.append(seconds_of(int(entry.name)))
        except OSError:  # it ended while we looked
            continue
    return found


def _fields(process: Path) -> list[str]:
    """A process's line, behind its name in parentheses: from field 3 on. The parent is 4, times are 14 to 17."""
    return (process / "stat").read_text().rpartition(")")[2].split()
