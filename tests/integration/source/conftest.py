"""A pipeline's source on a real server, and what its log says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.capture.capture import Capture
from airflow_parallel_apply.pipeline.capture.values import CaptureStep
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, Start
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogState
from airflow_parallel_apply.pipeline.source.postgres import PostgresSource
from tests.log_batches import spelled

EVERYTHING = 2**31 - 2


def never() -> bool:
    return False


class Capturing(Capture):
    """Captures in a scene; asks its source for what it does not know itself."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)


class Scene:
    """One database, one pipeline. Sources are made anew by `source`, as each process of a pipeline makes its own."""

    def __init__(self, dsn: str, config: PipelineConfig) -> None:
        self.dsn = dsn
        self.config = config
        self.slot = f"parallel_apply_{config.pipeline}"
        self.opened: list[Capturing] = []

    def execute(self, *statements: str) -> None:
        """Each in a transaction of its own."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def transaction(self, *statements: str) -> None:
        """All in one transaction."""
        with psycopg.connect(self.dsn) as connection:
            for statement in statements:
                connection.execute(statement)

    def value(self, query: str) -> Any:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            row = connection.execute(query).fetchone()
        return None if row is None else row[0]

    def source(self, *, batch_bytes: int = 8 * 2**20, **changed: Any) -> Capturing:
        config = replace(self.config, **changed)
        source = PostgresSource(Endpoint(conn_id="source", url=self.dsn), config, batch_bytes=batch_bytes)
        self.opened.append(Capturing(source, config))
        return self.opened[-1]

    def capture(self, *, max_changes: int = EVERYTHING, batch_bytes: int = 8 * 2**20) -> list[CaptureStep]:
        """All that is committed now, in as many steps as it takes."""
        source = self.source(batch_bytes=batch_bytes)
        until_offset = source.offset()
        steps = list(source.capture(until_offset, max_changes=max_changes, cancelled=never))
        while not steps[-1].done:
            steps += source.capture(until_offset, max_changes=max_changes, cancelled=never)
        return steps

    def state(self) -> LogState:
        return open_reader(self.config.log_url).state()

    def rows(self) -> list[dict[str, Any]]:
        """The log's rows in order, with their table's name and their values as lists."""
        reader = open_reader(self.config.log_url)
        state = reader.state()
        names = {relation.relation_id: relation.name for relation in state.relations}
        batches = reader.rows(-1, state.last_seqno, in_order=True)
        return [
            {**spelled(row), "table": names.get(row["relation_id"])} for batch in batches for row in batch.to_pylist()
        ]

    def shown(self, *names: str) -> list[tuple[Any, ...]]:
        """These columns of the log's rows, in order."""
        return [tuple(row[name] for name in names) for row in self.rows()]

    def transactions(self) -> pa.Table:
        return open_reader(self.config.log_url).transactions(-1, self.state().last_seqno)

    def contents(self) -> dict[str, list[tuple[str | None, ...]]]:
        """Replay the log plainly, row by row, and return each table's sorted texts."""
        relations = {relation.relation_id: relation for relation in self.state().relations}
        tables: dict[str, dict[Any, list[str | None]]] = {}
        for row in self.rows():
            if row["operation"] == "M":
                continue
            relation = relations[row["relation_id"]]
            table = tables.setdefault(relation.name, {})
            if row["operation"] == "T":
                table.clear()
                continue
            key = tuple(row["values"][index] for index in relation.key_indexes) or (row["seqno"], row["fragno"])
            self._replay(table, row, key)
        return {name: sorted((tuple(values) for values in rows.values()), key=repr) for name, rows in tables.items()}

    def close(self) -> None:
        for source in self.opened:
            source.close()
        self.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            f"WHERE database = current_database() AND slot_name <> '' AND slot_name LIKE '{self.slot}%'"
        )

    def _replay(self, table: dict[Any, list[str | None]], row: dict[str, Any], key: Any) -> None:
        values = list(row["values"])
        match row["operation"]:
            case "D":
                del table[key]
            case "X":
                table["arriving"] = table.pop(key)
            case operation:
                old = table.get(key) if operation == "U" else table.pop("arriving", None)
                if operation == "U" and old is None:
                    raise KeyError(key)
                for index in row["unsent"] or ():
                    values[index] = (old or [])[index]
                table[key] = values


@pytest.fixture
def scene(source_dsn: str, source_database: str, tmp_path: Path) -> Iterator[Scene]:
    config = PipelineConfig(pipeline=source_database, start=Start.EMPTY, log_url=str(tmp_path / "log"))
    scene = Scene(source_dsn, config)
    yield scene
    scene.close()
