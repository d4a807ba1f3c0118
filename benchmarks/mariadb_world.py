"""One history for two that follow it into MariaDB: a replica of MariaDB's own, and ours.

The history is written at PostgreSQL and captured. From the log it is written at a MariaDB primary as well: the same
transactions in the same order, so that the primary's binary log (ROW) has the same row changes, and one event for the
rows that one statement changed. Replica and target begin each measurement with a copy of the same data directory, made
before the history.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.demo.mariadb import MariaDbServer
from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.compare import compare
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, default_slot
from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.log.open import open_reader
from benchmarks.histories import History
from benchmarks.mariadb_session import connected, write_history
from benchmarks.world import Database, World, build_world

DATABASE: Final = "bench"
_LEDGER: Final = "ledger"
_PREPARED: Final = "prepared"
"""The target and its ledger, as they were when the history began."""
_PATIENCE_SECONDS: Final = 1800

SHARED: Final[Mapping[str, str]] = {
    "innodb_buffer_pool_size": "512M",
    "innodb_log_file_size": "1G",
    "innodb_flush_log_at_trx_commit": "1",
    "local_infile": "ON",
}
"""Settings of replica and target. Neither writes a binary log."""
PRIMARY: Final[Mapping[str, str]] = {
    **SHARED,
    # What it writes is not measured.
    "innodb_flush_log_at_trx_commit": "0",
    "server_id": "1",
    "log_bin": "binlog",
    "binlog_format": "ROW",
    "sync_binlog": "0",
}
REPLICA: Final[Mapping[str, str]] = {
    **SHARED,
    "server_id": "2",
    "relay_log": "relay",
    "skip_slave_start": "ON",
    "slave_parallel_mode": "optimistic",
    # Room for its threads to run ahead: the default is 128 kB.
    "slave_parallel_max_queued": "16M",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MariaDbWorld:
    """`world`: the history at PostgreSQL, and its log. `pipeline`: ours into MariaDB. `end`: the primary's last
    GTID.
    """

    world: World
    pipeline: PipelineConfig
    directory: Path
    primary: MariaDbServer
    replica: MariaDbServer
    target: MariaDbServer
    end: str

    @contextmanager
    def fresh_target(self) -> Iterator[Database]:
        """The target as it was when the history began, and a ledger of its own; running meanwhile."""
        # Under its name: the target knows where its ledger is.
        _copied_database(self.world, _PREPARED, _LEDGER)
        _copied(self.directory / _PREPARED, self.target.directory)
        with self.target:
            yield Database(
                name=DATABASE,
                dsn=self.target.url(DATABASE),
                ledger_dsn=self.world.source_server.dsn(_LEDGER),
            )

    @contextmanager
    def fresh_replica(self, threads: int) -> Iterator[Any]:
        """A session with the replica, which has received the whole history and applied nothing of it."""
        _copied(self.directory / "fresh", self.replica.directory)
        with self.replica, connected(self.replica) as session:
            session.execute(f"SET GLOBAL slave_parallel_threads = {threads}")
            session.execute(
                f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={self.primary.port}, MASTER_USER='root',"
                " MASTER_USE_GTID=slave_pos"
            )
            session.execute("START SLAVE IO_THREAD")
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while _status(session)["Gtid_IO_Pos"] != self.end:
                if time.monotonic() > deadline:
                    raise TargetError(f"the replica did not receive the history: {_status(session)}", op="bench")
                time.sleep(0.05)
            yield session

    def catch_up(self, session: Any) -> float:
        """Seconds from the start of the replica's applying until all of the history is committed there."""
        began = time.monotonic()
        session.execute("START SLAVE SQL_THREAD")
        session.execute(f"SELECT MASTER_GTID_WAIT('{self.end}', {_PATIENCE_SECONDS})")
        seconds = time.monotonic() - began
        if session.fetchone() != (0,):
            raise TargetError(f"the replica did not catch up: {_status(session)}", op="bench")
        return seconds

    def require_equal(self, server: MariaDbServer) -> None:
        """A measurement of something that did not arrive is none."""
        found = compare(self.world.source, _endpoint(self.world, server, _LEDGER), self.pipeline.tables)
        if not found.equal:
            raise TargetError(f"source and MariaDB differ: {found}", op="bench")

    def durability(self, server: MariaDbServer) -> str:
        """The settings that decide what a commit waits for, as a server that runs tells them."""
        names = ("innodb_flush_log_at_trx_commit", "innodb_doublewrite", "log_bin", "innodb_buffer_pool_size")
        return ", ".join(f"{name}={server.run(f'SELECT @@{name}').strip()}" for name in names)


@contextmanager
def build_mariadb_world(directory: Path, history: History) -> Iterator[MariaDbWorld]:
    """Start the servers, load all sides, write the history, capture it, write it at the primary."""
    fresh = MariaDbServer(directory / "fresh", settings=SHARED)
    target = MariaDbServer(directory / "target", settings=SHARED)
    found: list[PipelineConfig] = []

    def prepare(world: World) -> None:
        config = replace(world.log, pipeline="into_mariadb", slot=default_slot(world.log.pipeline))
        found.append(config)
        with fresh:
            _load(world, config, fresh)
        _copied(fresh.directory, target.directory)
        with target:
            run.prepare(config, world.source, _endpoint(world, target, _LEDGER))
        _copied(target.directory, directory / _PREPARED)
        _copied_database(world, _LEDGER, _PREPARED)

    with ExitStack() as stack:
        world = stack.enter_context(build_world(directory, history, repeats=0, captures=False, prepare=prepare))
        primary = MariaDbServer(directory / "primary", settings=PRIMARY)
        _copied(fresh.directory, primary.directory)
        stack.enter_context(primary)
        write_history(open_reader(world.log.log_url), primary, DATABASE)
        yield MariaDbWorld(
            world=world,
            pipeline=found[0],
            directory=directory,
            primary=primary,
            replica=MariaDbServer(directory / "replica", settings=REPLICA),
            target=target,
            end=primary.run("SELECT @@gtid_binlog_pos").strip(),
        )


def _endpoint(world: World, server: MariaDbServer, ledger: str) -> Endpoint:
    found = Endpoint(conn_id="ledger", url=world.source_server.dsn(ledger))
    return Endpoint(conn_id="target", url=server.url(DATABASE), ledger=found)


def _load(world: World, config: PipelineConfig, server: MariaDbServer) -> None:
    """Make the tables as `check` proposes them, with the source's rows."""
    world.source_server.create_database(_LEDGER)
    server.run(f"CREATE DATABASE {DATABASE}; CREATE DATABASE parallel_apply")
    for finding in check_pipeline(config, world.source, _endpoint(world, server, _LEDGER)).findings:
        if finding.is_table:
            server.run(";".join(finding.fix), database=DATABASE)
    tables = server.run("SHOW TABLES", database=DATABASE).split()
    with psycopg.connect(world.source.url) as source, connected(server) as session:
        for table in tables:
            path = server.directory.parent / f"{table}.tsv"
            with (
                path.open("wb") as file,
                source.cursor().copy(sql.SQL("COPY {} TO STDOUT").format(sql.Identifier(table))) as rows,
            ):
                for block in rows:
                    file.write(block)
            session.execute(f"LOAD DATA LOCAL INFILE '{path}' INTO TABLE {DATABASE}.`{table}`")
            path.unlink()


def _status(session: Any) -> dict[str, Any]:
    session.execute("SHOW SLAVE STATUS")
    return dict(zip((column[0] for column in session.description), session.fetchone(), strict=True))


def _copied(source: Path, to: Path) -> None:
    """A data directory of a stopped server, with its owner."""
    if to.exists():
        shutil.rmtree(to)
    subprocess.run(["cp", "-a", str(source), str(to)], check=True)


def _copied_database(world: World, template: str, name: str) -> None:
    """In the place of one that has this name."""
    with psycopg.connect(world.source_server.dsn(), autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )
