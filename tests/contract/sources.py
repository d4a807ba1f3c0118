"""The sources that the contract suite admits: one line each, and the database that the suite commits to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg
import pytest

from airflow_parallel_apply.pipeline.capture.capture import Capture
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, Start
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogState
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Operation
from airflow_parallel_apply.pipeline.model.copy_text import values_of
from airflow_parallel_apply.pipeline.source.postgres.connector import PostgresConnector
from airflow_parallel_apply.pipeline.source.protocol import Source, SourceConnector
from tests.support.in_memory.source import MemoryConnector, SourceData
from tests.support.written_log import TABLE, Change

Transactions = list[tuple[Change, ...]]
EVERYTHING: Final = 2**31 - 2


class World(ABC):
    """A database with the table `t (id integer PRIMARY KEY, v text)`, one pipeline that follows it, and its log."""

    connector: SourceConnector
    endpoint: Endpoint

    def __init__(self, directory: Path, pipeline: str = "demo") -> None:
        self.config = PipelineConfig(pipeline=pipeline, start=Start.EMPTY, log_url=str(directory / "log"))
        self.committed: Transactions = []
        self._opened: list[Source] = []

    def commit(self, *changes: Change) -> None:
        """One transaction."""
        self._commit(changes)
        self.committed.append(changes)

    def commit_many(self, count: int, *, first: int) -> None:
        """Transactions of one insert each."""
        for key in range(first, first + count):
            self.commit(Change("I", key, f"v{key}"))

    def capture(self, *, start: Start = Start.EMPTY) -> Capture:
        """A new one, as each process makes its own."""
        config = replace(self.config, start=start)
        self._opened.append(self.connector.open(self.endpoint, config))
        return Capture(self._opened[-1], config)

    def state(self) -> LogState:
        return open_reader(self.config.log_url).state()

    def logged(self) -> Transactions:
        """Read the log."""
        reader = open_reader(self.config.log_url)
        found: dict[int, list[Change]] = {}
        for batch in reader.rows(NO_SEQNO, reader.state().last_seqno, in_order=True):
            for row in batch.select(["seqno", "operation", "values"]).to_pylist():
                found.setdefault(row["seqno"], []).append(_change(row["operation"], row["values"]))
        return [tuple(found[seqno]) for seqno in sorted(found)]

    def drop(self) -> None:
        self.connector.drop(self.endpoint, self.config.stream, force=True)

    def close(self) -> None:
        for source in self._opened:
            source.close()
        self.drop()

    @abstractmethod
    def released(self) -> int | None:
        """Up to which offset the source has let go; None where it keeps nothing for the pipeline."""

    @abstractmethod
    def _commit(self, changes: tuple[Change, ...]) -> None: ...


class MemoryWorld(World):
    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__(request.getfixturevalue("tmp_path"))
        self.data = SourceData()
        self.endpoint = Endpoint(conn_id="source", url=f"memory://{uuid4().hex}")
        self.connector = MemoryConnector()
        MemoryConnector.databases[self.endpoint.url] = self.data

    def released(self) -> int | None:
        place = self.data.places.get(self.config.stream)
        return None if place is None else place.released

    def _commit(self, changes: tuple[Change, ...]) -> None:
        self.data.commit(*changes)

    def close(self) -> None:
        super().close()
        del MemoryConnector.databases[self.endpoint.url]


class PostgresWorld(World):
    def __init__(self, request: pytest.FixtureRequest) -> None:
        # A slot's name is the server's.
        super().__init__(request.getfixturevalue("tmp_path"), pipeline=request.getfixturevalue("source_database"))
        self._dsn = request.getfixturevalue("source_dsn")
        self.endpoint = Endpoint(conn_id="source", url=self._dsn)
        self.connector = PostgresConnector()
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(TABLE)

    def released(self) -> int | None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            found = connection.execute(
                "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = %s",
                [self.config.stream],
            ).fetchone()
        return None if found is None else int(found[0])

    def _commit(self, changes: tuple[Change, ...]) -> None:
        statements = {
            "I": "INSERT INTO t VALUES (%(id)s, %(v)s)",
            "U": "UPDATE t SET v = %(v)s WHERE id = %(id)s",
            "D": "DELETE FROM t WHERE id = %(id)s",
            "T": "TRUNCATE t",
        }
        with psycopg.connect(self._dsn) as connection:
            for change in changes:
                connection.execute(statements[change.operation], {"id": change.id, "v": change.v})


SOURCES: dict[str, Callable[[pytest.FixtureRequest], World]] = {
    "memory": MemoryWorld,
    "postgres": PostgresWorld,
}


def _change(operation: str, values: bytes) -> Change:
    if operation == Operation.TRUNCATE:
        return Change("T")
    key, value = values_of(values)
    return Change(operation, int(str(key)), None if operation == Operation.DELETE else value)


def never() -> bool:
    return False


def catch_up(world: World, *, max_changes: int = EVERYTHING, step_changes: int | None = None) -> list[Any]:
    """All that is committed now, each read by a process of its own."""
    until, steps = world.capture().source.offset(), []
    while not steps or not steps[-1].done:
        capturing = world.capture()
        steps += capturing.capture(until, max_changes=max_changes, step_changes=step_changes, cancelled=never)
    return steps


def require_complete(world: World) -> None:
    catch_up(world)
    assert world.logged() == world.committed
    assert not world.capture().has_changes(world.state().place)
