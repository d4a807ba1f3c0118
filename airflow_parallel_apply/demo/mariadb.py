"""Real MariaDB servers of the system's own packages, on loopback, gone when their owner is.

As `demo.postgres`: each is one child process of the caller, with a data directory of its own; no service is started,
and none is touched. The programs are found by their names; where they are missing, the package to install is said.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final, Self

from airflow_parallel_apply.demo.child import ChildServer
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


class MariaDbServer(ChildServer):
    """See `ChildServer`."""

    product: ClassVar[str] = "MariaDB"
    end_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, directory: Path, *, settings: Mapping[str, str] | None = None) -> None:
        if missing := missing_programs():
            raise Unavailable(
                f"MariaDB is missing: {', '.join(missing)}",
                op="server",
                hint="Install it (Debian and Ubuntu: apt-get install mariadb-server-core mariadb-client).",
            )
        super().__init__(
            directory,
            settings={**DEFAULT_SETTINGS, **(settings or {})},
            user=_USER if os.geteuid() == 0 else None,
        )

    def url(self, database: str) -> str:
        """The address of a database, as a target has it."""
        return f"mariadb://root@127.0.0.1:{self.port}/{database}"

    def make(self) -> None:
        self._own(self._temporary)
        if not (self.directory / "mysql").exists():
            self._make_directory(
                [*self._command(_INSTALL), "--auth-root-authentication-method=normal", "--skip-test-db"]
            )

    def start(self) -> Self:
        self.make()
        process = self._launch([*self._command(SERVER), f"--port={self.port}", "--bind-address=127.0.0.1"])
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while True:
            with suppress(Unavailable):
                if self.run(f"SELECT @@pid_file LIKE '{self.directory}%'").strip() == "1":
                    return self
            if time.monotonic() > deadline or process.poll() is not None:
                raise Unavailable("the MariaDB server did not start", op="server", hint=f"See {self.log}.")
            time.sleep(0.05)

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

    @property
    def _temporary(self) -> Path:
        """A server that starts removes the temporary tables that it finds: in a shared directory those of others."""
        return self.directory.parent / f"{self.directory.name}.tmp"

    def _command(self, program: str) -> list[str]:
        path = shutil.which(program, path=_PLACES) or program
        # A way to the socket has to be short, and nobody uses it.
        places = [
            f"--datadir={self.directory}",
            f"--tmpdir={self._temporary}",
            f"--socket={self.directory}/s",
            f"--pid-file={self.directory}/pid",
        ]
        settings = [f"--{name.replace('_', '-')}={value}" for name, value in self._settings.items()]
        return [path, "--no-defaults", *places, *settings]
