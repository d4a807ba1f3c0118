"""Two servers, one history at the source, and a target database that every measurement gets a fresh copy of.

Everything that is to follow the history (a slot for each measurement that reads one) is there before it begins, and
both sides hold the same rows then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.apply.capture_turn import READ_CHANGES, STEP_CHANGES
from airflow_parallel_apply.pipeline.capture.open import open_capture
from airflow_parallel_apply.pipeline.compare import compare
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.log.open import open_reader
from benchmarks.histories import History

PUBLICATION: Final = "native"
SERVER_SETTINGS: Final[Mapping[str, str]] = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "off",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "max_prepared_transactions": "20",
    # Each database that is measured keeps an origin for each channel.
    "max_active_replication_origins": "400",
}
"""Settings of both servers. PostgreSQL's own apply worker commits with synchronous_commit=off whatever the server says,
so ours does here: a crash of the target may cost either the last moments, and either applies them again.
"""

_DATABASE: Final = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """One measurement's target. `ledger_dsn`: where its database cannot hold the ledger."""

    name: str
    dsn: str
    ledger_dsn: str = ""

    @property
    def endpoint(self) -> Endpoint:
        """As the pipeline takes it."""
        ledger = Endpoint(conn_id="ledger", url=self.ledger_dsn) if self.ledger_dsn else None
        return Endpoint(conn_id="target", url=self.dsn, ledger=ledger)


@dataclass(slots=True, kw_only=True)
class World:
    """See the module. `log` is the pipeline whose log is captured, `fresh` those that have captured nothing yet."""

    directory: Path
    history: History
    source_server: PostgresServer
    target_server: PostgresServer
    log: PipelineConfig
    fresh: list[PipelineConfig]
    slots: list[str]
    """For PostgreSQL's own replication, one for each measurement."""
    end_offset: int = 0
    """The end of the last transaction."""
    capture_seconds: float = 0.0
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def source(self) -> Endpoint:
        """As the pipeline takes it."""
        return Endpoint(conn_id="source", url=self.source_server.dsn(_DATABASE))

    @contextmanager
    def database(self, config: PipelineConfig | None = None) -> Iterator[Database]:
        """A fresh copy of the target as it was when the history began; gone afterwards. `config`: the pipeline that it
        is prepared for; None: that of `log`.
        """
        name = f"measured_{next(self._numbers)}"
        _copy_database(self.target_server, _template(config or self.log), name)
        try:
            yield Database(name=name, dsn=self.target_server.dsn(name))
        finally:
            with _administer(self.target_server) as connection:
                connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def require_equal(self, database: Database) -> None:
        """A measurement of something that did not arrive is none."""
        found = compare(self.source, database.endpoint, self.log.tables)
        if not found.equal:
            unequal = ", ".join(table.name for table in found.tables if not table.equal)
            raise TargetError(f"source and target differ in {unequal}", op="bench")

    def durability(self) -> dict[str, dict[str, str]]:
        """The settings that decide what a commit waits for, as the servers tell them."""
        names = ("fsync", "synchronous_commit", "full_page_writes", "wal_level", "shared_buffers", "max_wal_size")
        told = {}
        for side, server in (("source", self.source_server), ("target", self.target_server)):
            with _administer(server) as connection:
                told[side] = {name: _show(connection, name) for name in names}
        return told


@contextmanager
def build_world(
    directory: Path,
    history: History,
    *,
    repeats: int,
    captures: bool = True,
    prepare: Callable[[World], None] | None = None,
) -> Iterator[World]:
    """Start the servers, load both sides, write the history, capture it once. `captures`: with pipelines that have
    captured nothing, too. `prepare`: called before the history, for others that are to follow it.
    """
    with (
        PostgresServer(directory / "source", settings=SERVER_SETTINGS) as source,
        PostgresServer(directory / "target", settings=SERVER_SETTINGS) as target,
    ):
        for server in (source, target):
            server.create_database(_DATABASE)
            history.prepare(server, _DATABASE)
            with psycopg.connect(server.dsn(_DATABASE), autocommit=True) as connection:
                connection.execute("VACUUM (FREEZE, ANALYZE)")
        world = World(
            directory=directory,
            history=history,
            source_server=source,
            target_server=target,
            log=_pipeline(directory, "bench"),
            fresh=[_pipeline(directory, f"bench_capture_{number}") for number in range(repeats if captures else 0)],
            slots=[f"native_{number}" for number in range(repeats)],
        )
        for config in (world.log, *world.fresh):
            # Of its own: no two pipelines apply the same tables to one target.
            template = Database(name=_template(config), dsn=target.dsn(_template(config)))
            _copy_database(target, _DATABASE, template.name)
            run.prepare(config, world.source, template.endpoint)
        _make_slots(world)
        if prepare is not None:
            prepare(world)
        history.write(source, _DATABASE)
        _capture(world)
        world.end_offset = _end_offset(world)
        yield world


def _template(config: PipelineConfig) -> str:
    return f"template_{config.pipeline}"


def _copy_database(server: PostgresServer, template: str, name: str) -> None:
    with _administer(server) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        connection.execute("CHECKPOINT")


def _pipeline(directory: Path, name: str) -> PipelineConfig:
    return PipelineConfig(
        pipeline=name, log_url=str(directory / f"log_{name}"), tables=TablePatterns(), start=Start.EQUAL
    )


def _make_slots(world: World) -> None:
    with psycopg.connect(world.source.url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE PUBLICATION {} FOR TABLES IN SCHEMA public").format(sql.Identifier(PUBLICATION))
        )
        for slot in world.slots:
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])


def _capture(world: World) -> None:
    """All of the history, without anything beside it."""
    with closing(open_capture(world.source, world.log)) as reading:
        until = reading.source.offset()
        began = monotonic()
        is_done = False
        while not is_done:
            for step in reading.capture(
                until, max_changes=READ_CHANGES, step_changes=STEP_CHANGES, cancelled=lambda: False
            ):
                is_done = step.done
        world.capture_seconds = monotonic() - began


def _end_offset(world: World) -> int:
    log = open_reader(world.log.log_url)
    last = log.state().last_seqno
    return int(log.transactions(last - 1, last).column("end_offset")[0].as_py())


@contextmanager
def _administer(server: PostgresServer) -> Iterator[psycopg.Connection]:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        yield connection


def _show(connection: psycopg.Connection, name: str) -> str:
    row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    return str(row[0]) if row else ""


def cpu_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
