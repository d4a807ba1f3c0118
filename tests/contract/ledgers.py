"""The ledgers that the contract suite admits, each with a target that it knows: one line a pair."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from tests.support.in_memory.ledger import LedgerData, MemoryLedger
from tests.support.in_memory.target import MemoryTarget
from tests.support.in_memory.target_data import TargetData
from tests.support.written_log import make_log

Open = Callable[[], PipelineSession]


def _in_memory(request: pytest.FixtureRequest, *, is_one_database: bool) -> Open:
    ledger_data, target_data, now = LedgerData(), TargetData(), datetime.now(UTC)

    def open_one() -> PipelineSession:
        ledger = MemoryLedger(ledger_data, pipeline="demo", clock=lambda: now)
        target = MemoryTarget(target_data, require_planned=ledger.is_planned if is_one_database else lambda unit: True)
        return PipelineSession(ledger=ledger, target=target, is_one_database=is_one_database)

    return open_one


def _in_postgres(request: pytest.FixtureRequest, *, is_one_database: bool) -> Open:
    ledger = None if is_one_database else Endpoint(conn_id="ledger", url=request.getfixturevalue("ledger_dsn"))
    endpoint = Endpoint(conn_id="target", url=request.getfixturevalue("target_dsn"), ledger=ledger)
    log_url = str(request.getfixturevalue("tmp_path") / "log")
    make_log(log_url)
    return lambda: open_pipeline(endpoint, "demo", log_url=log_url)


def _beside_files(request: pytest.FixtureRequest) -> Open:
    url = f"files+file://{request.getfixturevalue('tmp_path')}/lake"
    ledger = Endpoint(conn_id="ledger", url=request.getfixturevalue("ledger_dsn"))
    return lambda: open_pipeline(Endpoint(conn_id="target", url=url, ledger=ledger), "demo")


def _beside_kafka(request: pytest.FixtureRequest) -> Open:
    broker = KafkaBroker().start()
    request.addfinalizer(broker.stop)
    ledger = Endpoint(conn_id="ledger", url=request.getfixturevalue("ledger_dsn"))
    directory = request.getfixturevalue("tmp_path")
    url, log_url = f"kafka://{broker.address}/feed?staging={directory}", str(directory / "log")
    make_log(log_url)
    return lambda: open_pipeline(Endpoint(conn_id="target", url=url, ledger=ledger), "demo", log_url=log_url)


LEDGERS: dict[str, Callable[[pytest.FixtureRequest], Open]] = {
    "memory": lambda request: _in_memory(request, is_one_database=True),
    "memory, beside a target elsewhere": lambda request: _in_memory(request, is_one_database=False),
    "postgres": lambda request: _in_postgres(request, is_one_database=True),
    "postgres, beside files": _beside_files,
    "postgres, beside a Kafka target": _beside_kafka,
    "postgres, beside a target elsewhere": lambda request: _in_postgres(request, is_one_database=False),
}
