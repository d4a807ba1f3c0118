"""Temporary directories in memory, where there is plenty: making and removing a database's files costs a server more
than most tests ask of it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_MEMORY: Final = Path("/dev/shm")  # noqa: S108  # names are made by mkdtemp
_ENOUGH_BYTES: Final = 6 * 2**30
_NAME: Final = "parallel-apply-tests-{what}-{pid}-"


def memory_directory(what: str) -> Path:
    """A new one; among the usual temporary files where memory is short. The caller removes it."""
    if not (_MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ENOUGH_BYTES):
        return Path(tempfile.mkdtemp(prefix=_NAME.format(what=what, pid=os.getpid())))
    _remove_left_over()
    return Path(tempfile.mkdtemp(prefix=_NAME.format(what=what, pid=os.getpid()), dir=_MEMORY))


def _remove_left_over() -> None:
    """Those of processes that were killed: nothing else frees that memory."""
    for directory in _MEMORY.glob(_NAME.format(what="*", pid="*") + "*"):
        pid = directory.name.split("-")[4]
        if not Path(f"/proc/{pid}").exists():
            shutil.rmtree(directory, ignore_errors=True)
