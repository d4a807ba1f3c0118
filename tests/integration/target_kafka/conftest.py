"""A pipeline from PostgreSQL into the topics of a broker of the test's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from tests.support.kafka.registry import Registry
from tests.support.rig import Rig, execute


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker(default_partitions=3) as found:
        yield found


@pytest.fixture
def registry() -> Iterator[Registry]:
    found = Registry()
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.fixture
def make_rig(source_dsn: str, ledger_dsn: str, broker: KafkaBroker, tmp_path: Path) -> Callable[..., Rig]:
    """Takes the source's tables, and options of the target."""

    def make(*tables: str, **options: str) -> Rig:
        execute(source_dsn, *tables)
        config = PipelineConfig(pipeline="demo", log_url=str(tmp_path / "log"), start=Start.EMPTY, channels=2)
        query = "&".join(f"{name}={value}" for name, value in ({"staging": f"{tmp_path}/staging"} | options).items())
        url = f"kafka://{broker.address}/feed?{query}"
        return Rig(config=config, source_dsn=source_dsn, target_dsn=url, ledger_dsn=ledger_dsn)

    return make
