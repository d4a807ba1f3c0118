"""Spark encodes: its job gives the loader every change of a key, and its workers share files alone with a lane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import ConnectAccess
from airflow_parallel_apply.spark.stage import open_stage
from tests.support.kafka import KafkaBroker
from tests.support.kafka.feeds import changes, replayed
from tests.support.rig import Rig

TOPIC = "feed.public.t"


def test_every_change_of_a_key_goes_through_spark(
    make_rig: Callable[..., Rig], broker: KafkaBroker, spark_server: ServerLease, spark_session_id: str
) -> None:
    rig = make_rig("CREATE TABLE t (id integer PRIMARY KEY, v text)")
    access = ConnectAccess(url=spark_server.url, session_id=spark_session_id)
    # So few rows a task that keys are spread over several.
    rig = replace(
        rig,
        stage=lambda opened: open_stage(access=access, config=rig.config, target=rig.target, exchange_rows=500),
    )
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 1000) i")
    rig.write(*(f"UPDATE t SET v = '{step}' WHERE id % 10 = {step % 3}" for step in range(6)))
    rig.write("UPDATE t SET id = id + 5000 WHERE id <= 100", "DELETE FROM t WHERE id % 2 = 0")
    rig.run()
    of_source = dict(rig.rows("SELECT id, v FROM t", side="source"))
    assert {id_: row["v"] for id_, row in replayed(broker.address, TOPIC).items()} == of_source
    operations = [read.headers["operation"] for read in changes(broker.address, TOPIC)]
    assert operations.count("update") == 6 * 100
