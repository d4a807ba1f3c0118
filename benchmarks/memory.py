"""The memory that each kind of process took at most, watched while something is measured."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

_LOOK_SECONDS: Final = 0.1
_LOOKS_AT_ALL: Final = 5
"""Looks after which other processes are asked again what they are: a session of PostgreSQL says so a moment late. To
ask all of them each time would take a twentieth of a core from what is measured.
"""
_KINDS: Final = (
    ("SparkConnectServer", "Spark's server"),
    ("pyspark", "a Python worker of Spark"),
    ("postgres:", "a session of PostgreSQL"),
    ("multiprocessing", "a lane"),
)
"""Pairs of a part of a command line and what such a process is."""


class PeakMemory:
    """Bytes that one process of each kind took at most, in pages of its own: shared ones count for nobody."""

    def __init__(self) -> None:
        self.bytes_by_kind: dict[str, int] = {}
        self._known: dict[str, str] = {}
        """The kind of each process that has one, by its number."""
        self._others: set[str] = set()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look ten times a second, from a thread."""
        ended = threading.Event()

        def look() -> None:
            for number in count():
                if ended.wait(_LOOK_SECONDS):
                    return
                if number % _LOOKS_AT_ALL == 0:
                    self._others.clear()
                self._look()

        thread = threading.Thread(target=look, name="memory", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _look(self) -> None:
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid() or entry.name in self._others:
                continue
            try:
                kind = self._known.get(entry.name) or self._ask(entry)
                if kind is not None:
                    found = _anonymous_bytes((entry / "status").read_text())
                    self.bytes_by_kind[kind] = max(self.bytes_by_kind.get(kind, 0), found)
            except OSError:  # it ended while we looked
                self._known.pop(entry.name, None)

    def _ask(self, process: Path) -> str | None:
        command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        kind = next((name for part, name in _KINDS if part in command), None)
        if kind is None:
            self._others.add(process.name)
        else:
            self._known[process.name] = kind
        return kind


def _anonymous_bytes(status: str) -> int:
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
