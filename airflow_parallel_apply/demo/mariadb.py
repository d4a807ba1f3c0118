"""Real MariaDB servers of the system's own packages, on loopback, gone when their owner is.

As `demo.postgres`: each is one child process of the caller, with a data directory of its own; no service is started,
and none is touched. The programs are found by their names; where they are missing, the package to install is said.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from airflow_parallel_apply.demo.child import let_through, terminated_with_parent
from airflow_parallel_apply.demo.ports import free_port
from airflow_parallel_apply.pipeline.errors import Unavailable

SERVER: Final = "mariadbd"
CLIENT: Final = "mariadb"
_INSTALL: Final = "mariadb-install-db"
_PLACES: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
"""Distributions keep servers where a user's path does not lead."""
_START_TIMEOUT_SECONDS: Final = 120.0
_USER: Final = "nobody"

DEFAULT_SETTINGS: Final[Mapping[str, str]] = {
    "character_set_server": "utf8mb4",
    "collation_server": "utf8mb4_nopad_bin",
    "innodb_buffer_pool_size": "256M",
    "skip_name_resolve": "ON",
}


def missing_programs() -> tuple[str, ...]:
    """The programs that a server needs and the system has not."""
    return tuple(name for name in (SERVER, CLIENT, _INSTALL) if shutil.which(name, path=_PLACES) is None)


class MariaDbServer:
    """One server. Directory and port stay the same over `stop`, `kill` and `start`."""

    def __init__(self, directory: Path, *, settings: Mapping[str, str] | None = None) -> None:
        if missing := missing_programs():
            raise Unavailable(
                f"MariaDB is missing: {', '.join(missing)}",
                op="server",
                hint="Install it (Debian and Ubuntu: apt-get install mariadb-server-core mariadb-client).",
            )
        self.directory = directory.resolve()
        self.port = free_port()
        self._settings = {**DEFAULT_SETTINGS, **(settings or {})}
        # As root the server refuses to run.
        owner = pwd.getpwnam(_USER) if os.geteuid() == 0 else None
        self._user: int | None = None if owner is None else owner.pw_uid
        self._group: int | None = None if owner is None else owner.pw_gid
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str) -> str:
        """The address of a database, as a target has it."""
        return f"mariadb://root@127.0.0.1:{self.port}/{database}"

    @property
    def log(self) -> Path:
        """The file to which the server writes its messages."""
        return self.directory.parent / f"{self.directory.name}.log"

    @property
    def pid(self) -> int:
        """The server's process id."""
        if self._process is None:
            raise Unavailable("this MariaDB server is not running", op="server")
        return self._process.pid

    def start(self) -> Self:
        """Make the data directory on first use, start, wait until it answers."""
        if not (self.directory / "mysql").exists():
            self._make()
        command = [*self._command(SERVER), f"--port={self.port}", "--bind-address=127.0.0.1"]
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
                preexec_fn=terminated_with_parent,  # noqa: PLW1509  # runs prctl only
            )
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while True:
            with suppress(Unavailable):
                if self.run(f"SELECT @@pid_file LIKE '{self.directory}%'").strip() == "1":
                    return self
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise Unavailable("the MariaDB server did not start", op="server", hint=f"See {self.log}.")
            time.sleep(0.05)

    def stop(self) -> None:
        """End sessions, flush data."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As a crash: kill -9; `start` recovers."""
        self._end(signal.SIGKILL)

    def run(self, statements: str, *, database: str = "") -> str:
        """Run statements by MariaDB's own client; its output, tabs between values and no headings."""
        client = shutil.which(CLIENT, path=_PLACES) or CLIENT
        done = subprocess.run(
            [
                client, "--no-defaults", "--host=127.0.0.1", f"--port={self.port}", "--user=root", "--batch",
                "--skip-column-names", "--default-character-set=utf8mb4", *([database] if database else []),
            ],
            input=statements.encode(),
            capture_output=True,
            check=False,
        )  # fmt: skip
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()[-500:]
            raise Unavailable(f"{CLIENT} ended with {done.returncode}: {said}", op="server")
        # As they are: a line may end in a value's own carriage return.
        return done.stdout.decode()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _command(self, program: str) -> list[str]:
        path = shutil.which(program, path=_PLACES) or program
        # A way to the socket has to be short, and nobody uses it.
        places = [f"--datadir={self.directory}", f"--socket={self.directory}/s", f"--pid-file={self.directory}/pid"]
        settings = [f"--{name.replace('_', '-')}={value}" for name, value in self._settings.items()]
        return [path, "--no-defaults", *places, *settings]

    def _make(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._user is not None and self._group is not None:
            os.chown(self.directory, self._user, self._group)
            let_through(self.directory)
        done = subprocess.run(
            [*self._command(_INSTALL), "--auth-root-authentication-method=normal", "--skip-test-db"],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            user=self._user,
            group=self._group,
            extra_groups=None if self._user is None else [],
        )
        if done.returncode != 0:
            raise Unavailable(f"{_INSTALL} failed: {done.stderr.strip()[-500:]}", op="server")

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
