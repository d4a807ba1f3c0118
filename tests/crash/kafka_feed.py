"""A pipeline into topics that lanes and brokers die under, and what its topics must show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.router.plan import plan
from tests.crash.conftest import crash_config
from tests.support.kafka.feeds import replayed
from tests.support.rig import Rig

KAFKA = "airflow_parallel_apply.pipeline.target.kafka"
TOPIC = "feed.public.t"


def captured_feed(source_dsn: str, ledger_dsn: str, broker: KafkaBroker, directory: Path, *, steps: int) -> Rig:
    """Captured and planned: several units for each of two channels, around a truncate."""
    config = replace(crash_config(directory), channels=2, ddl=DdlPolicy.REFUSE)
    url = f"kafka://{broker.address}/feed?staging={directory}/staging"
    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=url, ledger_dsn=ledger_dsn)
    rig.write("CREATE TABLE t (id integer PRIMARY KEY, v text)")
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 30) i", "TRUNCATE t")
    for step in range(steps):
        rig.write(f"INSERT INTO t SELECT i, 'b' FROM generate_series({step * 100}, {step * 100 + 99}) i")
        rig.write("UPDATE t SET v = v || 'c' WHERE id % 3 = 0", "DELETE FROM t WHERE id % 7 = 3")
    rig.capture("run")
    plan(rig.config, rig.target)
    return rig


def require_replayed(rig: Rig, broker: KafkaBroker) -> None:
    """The topic's changes, each of them once, lead to the source's rows."""
    of_source = dict(rig.rows("SELECT id, v FROM t", side="source"))
    assert {id_: row["v"] for id_, row in replayed(broker.address, TOPIC).items()} == of_source
