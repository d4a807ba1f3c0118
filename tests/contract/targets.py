"""The targets that the contract suite of staging admits: one line each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Protocol

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.demo.mariadb import MariaDbServer
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Relation
from airflow_parallel_apply.pipeline.model.epoch import StagedUnit, Unit
from airflow_parallel_apply.pipeline.target.open import target_connector
from tests.support.in_memory.ledger import LedgerData, MemoryLedger
from tests.support.in_memory.rows import LogRow
from tests.support.in_memory.target import MemoryTarget
from tests.support.in_memory.target_data import TargetData
from tests.support.kafka import committed
from tests.support.log_rows import Row, clustered, in_order
from tests.support.written_log import TABLE, T

_BUCKETS = 1024


class Admitted(Protocol):
    """A target whose one table `t` has no rows, and what Spark's workers do with it."""

    def open(self) -> PipelineSession: ...

    def stage(self, session: PipelineSession, unit: Unit, keys: Sequence[int]) -> StagedUnit:
        """The unit's rows are insertions of these keys."""
        ...

    def keys(self) -> set[int]:
        """The keys of the table's rows."""
        ...


class InMemory:
    def __init__(self) -> None:
        self._ledger = LedgerData()
        self._target = TargetData()

    def open(self) -> PipelineSession:
        ledger = MemoryLedger(self._ledger, pipeline="demo", clock=lambda: datetime.now(UTC))
        return PipelineSession(ledger=ledger, target=MemoryTarget(self._target), is_one_database=True)

    def stage(self, session: PipelineSession, unit: Unit, keys: Sequence[int]) -> StagedUnit:
        assert isinstance(session.target, MemoryTarget)
        bucket = (unit.channel or 0) * _BUCKETS // unit.channels
        rows = [LogRow(unit.last_seqno, fragno, "I", bucket, key, "v") for fragno, key in enumerate(keys)]
        return session.target.stage(replace(unit, row_count=len(rows)), rows)

    def keys(self) -> set[int]:
        return set(self._target.rows)


class InPostgres:
    def __init__(self, dsn: str) -> None:
        self._endpoint = Endpoint(conn_id="target", url=dsn)
        self._attempts = count()
        with psycopg.connect(dsn) as connection:
            connection.execute(TABLE)

    def open(self) -> PipelineSession:
        connector = target_connector(self._endpoint)
        opened = connector.open_with_ledger(self._endpoint, "demo", relations=_OneTable())
        assert opened is not None
        return PipelineSession(ledger=opened[1], target=opened[0], is_one_database=True)

    def stage(self, session: PipelineSession, unit: Unit, keys: Sequence[int]) -> StagedUnit:
        return load_keys(self._endpoint, unit, keys, f"attempt {next(self._attempts)}")

    def keys(self) -> set[int]:
        with psycopg.connect(self._endpoint.url) as connection:
            return {key for (key,) in connection.execute("SELECT id FROM t")}


class InDelta:
    """With its ledger in memory. A table of current rows."""

    def __init__(self, directory: Path) -> None:
        self._endpoint = Endpoint(conn_id="target", url=f"delta://{directory}")
        self._ledger = LedgerData()
        self._attempts = count()
        self._table = f"{directory}/public/t"
        DeltaTable.create(self._table, schema=pa.schema([("id", pa.int32()), ("v", pa.string())]))

    def open(self) -> PipelineSession:
        ledger = MemoryLedger(self._ledger, pipeline="demo", clock=lambda: datetime.now(UTC))
        target = target_connector(self._endpoint).open(
            self._endpoint, "demo", relations=_OneTable(), ledger=lambda: "elsewhere"
        )
        return PipelineSession(ledger=ledger, target=target, is_one_database=False)

    def stage(self, session: PipelineSession, unit: Unit, keys: Sequence[int]) -> StagedUnit:
        return load_keys(self._endpoint, unit, keys, f"attempt {next(self._attempts)}")

    def keys(self) -> set[int]:
        return set(DeltaTable(self._table).to_pyarrow_table().column("id").to_pylist())


class InDeltaFeed(InDelta):
    """A table of every change."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        shutil.rmtree(self._table)
        self._endpoint = Endpoint(conn_id="target", url=f"delta://{directory}?feed=true")

    def stage(self, session: PipelineSession, unit: Unit, keys: Sequence[int]) -> StagedUnit:
        return load_changes(self._endpoint, unit, keys, f"attempt {next(self._attempts)}")

    def keys(self) -> set[int]:
        if not DeltaTable.is_deltatable(self._table):
            return set()
        found = super().keys()
        assert len(found) == DeltaTable(self._table).count(), "each change is there once"
        return found


class InMariaDb:
    """Its ledger is in memory, as it is in another database for every target that can hold none."""

    def __init__(self, server: MariaDbServer, url: str) -> None:
        self._server = server
        self._endpoint = Endpoint(conn_id="target", url=url)
        self._ledger = LedgerData()
        self._attempts = count()
        server.run("CREATE TABLE t (id int PRIMARY KEY, v text)", database="test")

    def open(self) -> PipelineSession:
        ledger = MemoryLedger(self._ledger, pipeline="demo", clock=lambda: datetime.now(UTC))
        connector = target_connector(self._endpoint)
        target = connector.open(self._endpoint, "demo", relations=_OneTable(), ledger=lambda: "another")
        return PipelineSession(ledger=ledger, target=target, is_one_database=False)

    def stage(self, session: PipelineSession, unit: Unit, keys: Sequence[int]) -> StagedUnit:
        return load_keys(self._endpoint, unit, keys, f"attempt {next(self._attempts)}")

    def keys(self) -> set[int]:
        return {int(key) for key in self._server.run("SELECT id FROM t", database="test").split()}


def load_keys(endpoint: Endpoint, unit: Unit, keys: Sequence[int], attempt: str) -> StagedUnit:
    """Load insertions of these keys as a Spark task would."""
    rows = [
        Row(seqno=unit.last_seqno, fragno=fragno, operation="I", values=(str(key), "v"), relation_id=0)
        for fragno, key in enumerate(keys)
    ]
    loaded = target_connector(endpoint).loader(endpoint, unit, [T]).load(clustered({0: T}, rows), attempt)
    return StagedUnit(unit=unit, tables=loaded.tables, row_count=loaded.row_count, seconds=0.0)


def load_changes(endpoint: Endpoint, unit: Unit, keys: Sequence[int], attempt: str) -> StagedUnit:
    """The same into a feed, which takes every change."""
    rows = [
        Row(seqno=unit.last_seqno, fragno=fragno, operation="I", values=(str(key), "v"), relation_id=0)
        for fragno, key in enumerate(keys)
    ]
    times = _OneTable().commit_times(unit.after_seqno, unit.last_seqno)
    loader = target_connector(endpoint).loader(endpoint, unit, [T], commit_times=times)
    loaded = loader.load(in_order({0: T}, rows), attempt)
    return StagedUnit(unit=unit, tables=loaded.tables, row_count=loaded.row_count, seconds=0.0)


class InFiles:
    """A directory, and a ledger in memory."""

    def __init__(self, directory: Path) -> None:
        self._endpoint = Endpoint(conn_id="target", url=f"files+file://{directory}/lake")
        self._ledger = LedgerData()
        self._attempts = count()

    def open(self) -> PipelineSession:
        ledger = MemoryLedger(self._ledger, pipeline="demo", clock=lambda: datetime.now(UTC))
        target = target_connector(self._endpoint).open(
            self._endpoint, "demo", relations=_OneTable(), ledger=lambda: "memory"
        )
        return PipelineSession(ledger=ledger, target=target, is_one_database=False)

    def stage(self, session: PipelineSession, unit: Unit, keys: Sequence[int]) -> StagedUnit:
        if unit.group is not None:
            # As every lane does before it stages a part.
            session.target.take_part(unit)
        return load_changes(self._endpoint, unit, keys, f"attempt {next(self._attempts)}")

    def keys(self) -> set[int]:
        dataset = Dataset(FilePlace(self._endpoint.url.removeprefix("files+")))
        paths = [dataset.place.url(file.path) for manifest in dataset.manifests() for file in manifest.files]
        return {key for path in paths for key in pq.read_table(path.removeprefix("file://"))["id"].to_pylist()}


class InKafka:
    def __init__(self, address: str, staging: str) -> None:
        self._address = address
        self._endpoint = Endpoint(conn_id="target", url=f"kafka://{address}/feed?staging={staging}")
        self._ledger = LedgerData()
        self._attempts = count()

    def open(self) -> PipelineSession:
        target = target_connector(self._endpoint).open(self._endpoint, "demo", relations=_OneTable())
        ledger = MemoryLedger(self._ledger, pipeline="demo", clock=lambda: datetime.now(UTC))
        return PipelineSession(ledger=ledger, target=target, is_one_database=False)

    def stage(self, session: PipelineSession, unit: Unit, keys: Sequence[int]) -> StagedUnit:
        return load_changes(self._endpoint, unit, keys, f"attempt {next(self._attempts)}")

    def keys(self) -> set[int]:
        return {json.loads(message.key or b"{}")["id"] for message in committed(self._address, "feed.public.t")}


def _in_kafka(request: pytest.FixtureRequest) -> InKafka:
    broker = KafkaBroker().start()
    request.addfinalizer(broker.stop)
    return InKafka(broker.address, str(request.getfixturevalue("tmp_path") / "staging"))


class _OneTable:
    def commit_times(self, after_seqno: int, last_seqno: int) -> CommitTimes:
        seqnos = np.arange(after_seqno + 1, last_seqno + 1)
        return CommitTimes(seqnos=seqnos, times=pa.array([datetime.now(UTC)] * len(seqnos), pa.timestamp("us", "UTC")))

    def __call__(self, relation_id: int) -> Relation:
        return T

    def names(self, after_seqno: int) -> set[tuple[str, str]]:
        return {(T.schema, T.table)}

    def all_names(self) -> set[tuple[str, str]]:
        return self.names(NO_SEQNO)

    def definitions(self) -> tuple[Relation, ...]:
        return (T,)


TARGETS: dict[str, Callable[[pytest.FixtureRequest], Admitted]] = {
    "delta": lambda request: InDelta(request.getfixturevalue("tmp_path")),
    "delta-feed": lambda request: InDeltaFeed(request.getfixturevalue("tmp_path")),
    "mariadb": lambda request: InMariaDb(
        request.getfixturevalue("mariadb_server"), request.getfixturevalue("mariadb_url")
    ),
    "files": lambda request: InFiles(request.getfixturevalue("tmp_path")),
    "kafka": _in_kafka,
    "memory": lambda request: InMemory(),
    "postgres": lambda request: InPostgres(request.getfixturevalue("target_dsn")),
}
