"""A database server as a child process of the demo and the tests, which ends when its owner does."""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from airflow_parallel_apply.demo.ports import free_port
from airflow_parallel_apply.pipeline.errors import Unavailable

_PR_SET_PDEATHSIG: Final = 1


class ChildServer(ABC):
    """One server on loopback. Directory and port stay the same over `stop`, `kill` and `start`.

    `user`: as whom it runs where the caller is root, as which the server would refuse to run.
    """

    product: ClassVar[str]
    end_signal: ClassVar[signal.Signals]
    """The signal at which it ends its sessions and flushes its data."""

    def __init__(self, directory: Path, *, settings: Mapping[str, str], user: str | None) -> None:
        self.directory = directory.resolve()
        self.port = free_port()
        self._settings = dict(settings)
        owner = None if user is None else pwd.getpwnam(user)
        self._user: int | None = None if owner is None else owner.pw_uid
        self._group: int | None = None if owner is None else owner.pw_gid
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """The file to which the server writes its messages."""
        return self.directory.parent / f"{self.directory.name}.log"

    @property
    def pid(self) -> int:
        """The server's process id; of PostgreSQL, the postmaster's."""
        if self._process is None:
            raise Unavailable(f"this {self.product} server is not running", op="server")
        return self._process.pid

    @abstractmethod
    def make(self) -> None:
        """Fill the data directory, where that is not done. Errors: `Unavailable`."""

    @abstractmethod
    def start(self) -> Self:
        """Make the data directory on first use, start, wait until it answers. Errors: `Unavailable`."""

    def stop(self) -> None:
        """Shut it down: sessions are ended, data are flushed."""
        self._end(self.end_signal)

    def kill(self) -> None:
        """As a crash: kill -9 (PostgreSQL's backends do not survive their postmaster); `start` recovers."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _make_directory(self, command: Sequence[str]) -> None:
        """Run the program that fills the data directory, as the server's user. Errors: `Unavailable`."""
        self._own(self.directory)
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            user=self._user,
            group=self._group,
            extra_groups=None if self._user is None else [],
        )
        if done.returncode != 0:
            # Without a word where a signal ended it.
            said = done.stderr.strip()[-500:]
            raise Unavailable(f"{Path(command[0]).name} ended with {done.returncode}: {said}", op="server")

    def _own(self, directory: Path) -> None:
        """Make a directory of the server's user."""
        directory.mkdir(parents=True, exist_ok=True)
        if self._user is not None and self._group is not None:
            os.chown(directory, self._user, self._group)
            let_through(directory)

    def _launch(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                user=self._user,
                group=self._group,
                extra_groups=None if self._user is None else [],
                start_new_session=True,
                preexec_fn=partial(_end_with_parent, self.end_signal),  # noqa: PLW1509  # runs prctl only
            )
        return self._process

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _end_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent dies, whatever ends it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def let_through(directory: Path) -> None:
    """Let another user pass the directories above its own; nothing becomes readable by that."""
    for parent in directory.parents:
        mode = parent.stat().st_mode
        if mode & 0o001 == 0:
            parent.chmod(mode | 0o001)
