"""Targets of a demonstration: where the history goes to, by the words of DEMO_TARGET.

Beside the target there is always a PostgreSQL server: it is the target, or it keeps the pipeline's ledger.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import quote

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.demo.mariadb import MariaDbServer
from airflow_parallel_apply.demo.postgres import PostgresServer

if TYPE_CHECKING:
    from airflow_parallel_apply.demo.settings import DemoSettings


_TOPICS: Final = "shop"
"""The prefix of topics."""


class TargetName(StrEnum):
    """The values of DEMO_TARGET."""

    POSTGRES = "postgres"
    FILES = "files"
    DELTA = "delta"
    MARIADB = "mariadb"
    KAFKA = "kafka"


class DemoTarget(Protocol):
    """One target, made but not started. Its tables are there once it is, if it needs any."""

    @property
    def is_ledger(self) -> bool:
        """True if it is the PostgreSQL server itself, so that the pipeline's ledger is in it."""
        ...

    @property
    def url(self) -> str:
        """The endpoint's."""
        ...

    @property
    def connection(self) -> str:
        """Its connection in Airflow, as a variable's value: a URI or JSON."""
        ...

    def start(self) -> str:
        """Start what there is to start; a sentence for people."""
        ...

    def stop(self) -> None:
        """Idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTarget:
    """The server itself, which its stage starts and stops."""

    server: PostgresServer
    database: str
    is_ledger: bool = True

    @property
    def url(self) -> str:
        return self.server.dsn(self.database)

    @property
    def connection(self) -> str:
        return self.server.uri(self.database)

    def start(self) -> str:
        return f"the target is PostgreSQL on port {self.server.port}"

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesTarget:
    """A directory of Parquet files."""

    directory: str
    is_ledger: bool = False

    @property
    def url(self) -> str:
        return f"files+{self.directory}"

    @property
    def connection(self) -> str:
        return json.dumps({"conn_type": "parallel_apply_files", "host": self.directory})

    def start(self) -> str:
        return f"the target is the directory {self.directory}"

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MariaDbTarget:
    """A MariaDB server of the demonstration's own, from the system's package."""

    server: MariaDbServer
    database: str
    is_ledger: bool = False

    @property
    def url(self) -> str:
        return self.server.url(self.database)

    @property
    def connection(self) -> str:
        return json.dumps(
            {
                "conn_type": "parallel_apply_mariadb",
                "host": "127.0.0.1",
                "port": self.server.port,
                "login": "root",
                "schema": self.database,
            }
        )

    def start(self) -> str:
        self.server.start()
        self.server.run(f"CREATE DATABASE {self.database}")
        self.server.run(files(__package__).joinpath("mariadb.sql").read_text("utf-8"), database=self.database)
        return f"the target is MariaDB on port {self.server.port}"

    def stop(self) -> None:
        self.server.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaTarget:
    """A Delta lake in a directory."""

    directory: Path
    is_ledger: bool = False

    @property
    def url(self) -> str:
        return f"delta+{self.directory.as_uri()}"

    @property
    def connection(self) -> str:
        return json.dumps({"conn_type": "parallel_apply_delta", "host": self.directory.as_uri()})

    def start(self) -> str:
        self.directory.mkdir(parents=True, exist_ok=True)
        return f"the target is the Delta lake {self.directory}"

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTarget:
    """Topics of a small broker in the demonstration's own process. `staging`: the directory of staged messages."""

    broker: KafkaBroker
    staging: Path
    is_ledger: bool = False

    @property
    def url(self) -> str:
        return f"kafka://{self.broker.address}/{_TOPICS}?staging={quote(str(self.staging), safe='')}"

    @property
    def connection(self) -> str:
        return json.dumps(
            {
                "conn_type": "parallel_apply_kafka",
                "host": self.broker.address,
                "schema": _TOPICS,
                "extra": {"staging": str(self.staging)},
            }
        )

    def start(self) -> str:
        self.broker.start()
        return f"the target is a small Kafka broker at {self.broker.address}, topics {_TOPICS}.public.…"

    def stop(self) -> None:
        self.broker.stop()


def make_target(settings: DemoSettings, server: PostgresServer, database: str) -> DemoTarget:
    """The target that the settings name, beside a server that keeps the ledger."""
    match settings.target:
        case TargetName.POSTGRES:
            return PostgresTarget(server=server, database=database)
        case TargetName.DELTA:
            return DeltaTarget(directory=settings.run / "lake")
        case TargetName.FILES:
            return FilesTarget(directory=(settings.run / "lake").as_uri())
        case TargetName.MARIADB:
            return MariaDbTarget(server=MariaDbServer(settings.run / "mariadb"), database=database)
        case TargetName.KAFKA:
            return KafkaTarget(broker=KafkaBroker(), staging=settings.run / "staging")
