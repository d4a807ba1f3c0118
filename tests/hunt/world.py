"""The servers of a trial: two of its own, a database for each trial, copies of a server's directory."""

from __future__ import annotations

import shutil
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psycopg

from airflow_parallel_apply.demo.postgres import PostgresServer
from tests.hunt.targets.open import open_hunted
from tests.hunt.targets.protocol import HuntedTarget
from tests.support.clusters import CopiedServer
from tests.support.ddl_messages import install
from tests.support.memory_router import MemoryRouter, memory_router
from tests.support.rig import execute

_SETTINGS: Final = {
    "fsync": "off", "full_page_writes": "off", "autovacuum": "off", "io_method": "sync", "shared_buffers": "32MB",
    "max_wal_size": "256MB", "min_wal_size": "32MB", "wal_init_zero": "off", "wal_writer_delay": "10ms",
    "max_prepared_transactions": "10", "max_connections": "100", "allow_in_place_tablespaces": "on",
}  # fmt: skip
_DATABASES: Final = ("hunt", "queue")
_SELDOM: Final = "SELECT datname FROM pg_database WHERE datname = 'second' OR datname LIKE 'photograph_%'"
"""Databases that a few trials have."""
_END: Final = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s"


class World:
    """Two servers, and a router. `fresh` gives a new database of one name on both; the former one is dropped."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.servers = {side: CopiedServer(directory / side, settings=_SETTINGS) for side in ("source", "target")}
        self._stack = ExitStack()
        self._router: MemoryRouter | None = None
        self._hunted: dict[str, HuntedTarget] = {}

    def fresh(self) -> None:
        """Errors: psycopg's, when a server is out of order."""
        for server in self.servers.values():
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                for (held,) in connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
                    with suppress(psycopg.Error):
                        execute(server.dsn("hunt"), f"ROLLBACK PREPARED '{held}'")
                connection.execute("ALTER ROLE postgres RESET ALL")
                databases = [*_DATABASES, *(name for (name,) in connection.execute(_SELDOM).fetchall())]
                for name in databases:
                    connection.execute(_END, [name])
                connection.execute(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
                )
                for name in databases:
                    connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
                for name in _DATABASES:
                    connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
                for role, rights in (("plain", ""), ("reader", "REPLICATION")):
                    # What a hint granted beside the databases, such as the right to set a parameter.
                    with suppress(psycopg.errors.UndefinedObject):
                        connection.execute(f"DROP OWNED BY {role}")
                    connection.execute(f"DROP ROLE IF EXISTS {role}")
                    connection.execute(f"CREATE ROLE {role} LOGIN {rights}")
        for side, role in (("target", "plain"), ("source", "reader")):
            execute(
                self.servers[side].dsn("hunt"),
                f"GRANT CREATE ON DATABASE hunt TO {role}",
                f"GRANT CREATE ON SCHEMA public TO {role}",
            )
        install(self.servers["source"].dsn("hunt"))
        # Whoever migrates may send it, too.
        execute(
            self.servers["source"].dsn("hunt"),
            "GRANT EXECUTE ON FUNCTION parallel_apply.send_ddl(text, name[]) TO reader",
        )
        for old in (*map(self._kept, self.servers), *self.directory.glob("log*")):
            shutil.rmtree(old, ignore_errors=True)
        for side in self.servers:
            self._dumped(side).unlink(missing_ok=True)

    def second(self) -> str:
        """The database of another target, made anew; its address."""
        execute(self.servers["target"].dsn(), "CREATE DATABASE second STRATEGY file_copy")
        return self.servers["target"].dsn("second")

    def photograph(self, name: str) -> str:
        """The trial's database at the source as it is now, as another one; its address, or nothing where somebody is at
        work in it.
        """
        server, database = self.servers["source"], f"photograph_{name}"
        with psycopg.connect(server.dsn(), autocommit=True) as connection, suppress(psycopg.errors.ObjectInUse):
            connection.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {database} TEMPLATE hunt STRATEGY file_copy")
            return server.dsn(database)
        return ""

    def hunted(self, name: str) -> HuntedTarget:
        """A target of another kind, made when it is first asked for."""
        if name not in self._hunted:
            self._hunted[name] = open_hunted(name, self.directory)
            self._stack.callback(self._hunted[name].close)
        return self._hunted[name]

    def keep(self, side: str) -> None:
        """Copy a server's directory while it is down."""
        server = self.servers[side]
        server.stop()
        self._copy(server.directory, self._kept(side))
        server.start()

    def restore(self, side: str, *, promoted: bool = False) -> None:
        """Nothing, if nothing was kept."""
        if self._kept(side).exists():
            server = self.servers[side]
            server.kill()
            self._copy(self._kept(side), server.directory)
            self._start(server, promoted=promoted)

    def promote(self, side: str) -> None:
        """As a standby does that had received everything: the same WAL, on a timeline of its own."""
        server = self.servers[side]
        server.stop()
        self._start(server, promoted=True)

    @staticmethod
    def _start(server: PostgresServer, *, promoted: bool) -> None:
        if promoted:
            with (server.directory / "postgresql.auto.conf").open("a") as settings:
                settings.write("restore_command = 'false'\n")
            (server.directory / "recovery.signal").touch()
        server.start()
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            while connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
                time.sleep(0.05)

    def dump(self, side: str) -> None:
        """The trial's database, with what belongs to it in its server."""
        self._tool(
            side, "pg_dump", "--format=custom", "--file", str(self._dumped(side)), self.servers[side].dsn("hunt")
        )

    def load(self, side: str) -> None:
        """Nothing, if nothing was dumped. A database with a slot cannot be dropped."""
        if not self._dumped(side).exists():
            return
        with psycopg.connect(self.servers[side].dsn(), autocommit=True) as connection:
            connection.execute(_END, ["hunt"])
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = 'hunt'"
            )
        restore = ("--clean", "--create", "--if-exists", "--exit-on-error", "--dbname", self.servers[side].dsn())
        self._tool(side, "pg_restore", *restore, str(self._dumped(side)))

    def crash(self, side: str) -> None:
        self.servers[side].kill()
        self.servers[side].start()

    def __enter__(self) -> Self:
        for server in self.servers.values():
            self._stack.enter_context(server)
        self._router = self._stack.enter_context(memory_router(self.directory))
        return self

    @property
    def router(self) -> MemoryRouter:
        """That of pipelines with store=memory."""
        assert self._router is not None
        return self._router

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _tool(self, side: str, tool: str, *arguments: str) -> None:
        subprocess.run([self.servers[side].bin_path / tool, *arguments], check=True, capture_output=True)

    def _dumped(self, side: str) -> Path:
        return self.directory / f"{side}.dump"

    def _kept(self, side: str) -> Path:
        return self.directory / f"{side}.kept"

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        """With owners and modes, which the server insists on."""
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)
