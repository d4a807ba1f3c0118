"""Servers as child processes of the demo and the tests: they end when their owner does."""

from __future__ import annotations

import ctypes
import signal
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def interrupted_with_parent() -> None:
    """Have the kernel interrupt this process when its parent dies, whatever ends it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


def terminated_with_parent() -> None:
    """The same for a server that takes another signal for its end."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def let_through(directory: Path) -> None:
    """Let another user pass the directories above its own; nothing becomes readable by that."""
    for parent in directory.parents:
        mode = parent.stat().st_mode
        if mode & 0o001 == 0:
            parent.chmod(mode | 0o001)
