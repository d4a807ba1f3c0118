"""Process trees that are gone when their owner is, whatever happened to the processes in between.

Airflow's task processes outlive a killed scheduler, and a Spark server outlives the task that started it, so neither
parents nor process groups tell what belongs to us. A variable in the environment does: every descendant inherits it,
and the kernel shows it in `/proc/<pid>/environ` as it was at `exec`. A `Tree` is all processes with one value of it.

A guard process holds the reading end of a pipe and ends the tree when the owner's end closes: after kill -9 too.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Final

from airflow_parallel_apply.pipeline.errors import Unavailable

MARKER: Final = "PARALLEL_APPLY_TREE"
_POLL_SECONDS: Final = 0.05
_KILL_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedProcess:
    """A living process of a tree."""

    pid: int
    parent: int
    command: str


class Tree:
    """Processes that we started, and all that came of them. `token` names the tree, also to another process."""

    def __init__(self, token: str | None = None) -> None:
        self.token = token or secrets.token_hex(16)
        self._lock = threading.Lock()
        self._ended = False
        self._guard: subprocess.Popen[bytes] | None = None
        self._children: list[subprocess.Popen[bytes]] = []

    def launch(
        self, command: Sequence[str], *, environment: Mapping[str, str], log: Path, directory: Path
    ) -> subprocess.Popen[bytes]:
        """Start a process of the tree in a session of its own; its output goes to the end of `log`.

        Any thread may call it. Errors: `Unavailable` once the tree was ended.
        """
        with self._lock, log.open("ab") as output:
            if self._ended:
                raise Unavailable("this tree of processes was ended", op="processes")
            self._watch()
            child = subprocess.Popen(
                list(command),
                # Without SPT_NOENV a process that sets its title writes over its environment, and with it our marker.
                env={**environment, MARKER: self.token, "SPT_NOENV": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=directory,
                start_new_session=True,
            )
            self._children.append(child)
            return child

    def processes(self) -> tuple[MarkedProcess, ...]:
        """Everything of the tree that lives now; zombies do not."""
        needle = f"{MARKER}={self.token}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if needle not in (entry / "environ").read_bytes().split(b"\0"):
                    continue
                state, parent = _state(entry)
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:  # it ended while we looked, or belongs to somebody else
                continue
            if state != "Z":
                found.append(MarkedProcess(pid=int(entry.name), parent=int(parent), command=command))
        return tuple(found)

    def end(self, *, patience: timedelta = timedelta(0)) -> None:
        """End everything: SIGTERM to what `launch` started, then, when patience is over, kill -9 to all that is left.

        Returns when nothing of the tree lives. It looks again after each kill, since a process may fork meanwhile.
        Errors: `Unavailable` that names what survives being killed for ten seconds.
        """
        with self._lock:
            self._ended = True
        if patience:
            for child in self._children:
                if child.poll() is None:
                    child.terminate()
            self._wait_until_empty(patience.total_seconds())
        deadline = time.monotonic() + _KILL_SECONDS
        while (living := self.processes()) and time.monotonic() < deadline:
            for process in living:
                _kill(process.pid)
            self._reap()
            time.sleep(_POLL_SECONDS)
        self._reap()
        self._dismiss()
        if living:
            names = "; ".join(f"pid {process.pid} ({process.command})" for process in living)
            raise Unavailable(
                f"processes live on although they were killed: {names}",
                op="processes",
                hint="One that is stuck in the kernel, on a disk or a network share, ends when that answers.",
            )

    def _wait_until_empty(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._reap()
            if not self.processes():
                return
            time.sleep(_POLL_SECONDS)

    def _reap(self) -> None:
        self._children = [child for child in self._children if child.poll() is None]

    def _watch(self) -> None:
        if self._guard is not None and self._guard.poll() is None:
            return
        # The guard itself carries no marker, or it would end itself first. The token goes in by its standard input.
        self._guard = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, cwd="/", start_new_session=True
        )
        pipe = _pipe_of(self._guard)
        pipe.write(f"{self.token}\n".encode())
        pipe.flush()

    def _dismiss(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            _pipe_of(guard).close()
            guard.wait()


def is_alive(pid: int) -> bool:
    """True if the process runs; a zombie does not."""
    try:
        return _state(Path("/proc") / str(pid))[0] != "Z"
    except OSError:
        return False


def guard(pipe: IO[bytes]) -> None:
    """Wait for the owner's end of the pipe to close, then end the tree whose token came through it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    token = pipe.readline().decode().strip()
    pipe.read()
    if token:
        Tree(token).end()


def _state(entry: Path) -> tuple[str, str]:
    """State and parent: the fields behind the name, which may hold anything."""
    state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
    return state, parent


def _pipe_of(process: subprocess.Popen[bytes]) -> IO[bytes]:
    if process.stdin is None:
        raise ValueError("the guard was started without a pipe")
    return process.stdin


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    guard(sys.stdin.buffer)
