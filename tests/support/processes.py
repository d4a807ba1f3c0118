"""Processes and files that come and go while somebody looks at them: what is gone meanwhile is passed over."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path


def parent_of(pid: int) -> int | None:
    """None: the process is gone, or is a zombie that nobody has asked for yet."""
    with suppress(OSError):
        state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state == "Z" else int(parent)
    return None


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def holders_of(opened: Collection[str]) -> set[int]:
    """The processes that have one of these open: `socket:[4711]`, as the kernel names it."""
    found = set()
    for pid in processes():
        with suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()) in opened:
                        found.add(pid)
    return found


def files_below(directory: Path) -> Iterator[Path]:
    """The files of a directory and of those in it."""
    for folder, _, names in os.walk(directory):
        yield from (Path(folder, name) for name in names)
