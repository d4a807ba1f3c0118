"""Spark encodes: its job gives the loader every change of a key, and its workers share files alone with a lane."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import ConnectAccess
from airflow_parallel_apply.spark.stage import open_stage
from tests.crash.scene import spark_processes
from tests.support.kafka.feeds import changes, replayed
from tests.support.kafka.registry import Registry
from tests.support.rig import Rig
from tests.support.variants import gated

TOPIC = "feed.public.t"


@gated
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


@gated
def test_a_spark_worker_that_is_killed_while_it_encodes_leaves_nothing(
    make_rig: Callable[..., Rig],
    broker: KafkaBroker,
    registry: Registry,
    spark_server: ServerLease,
    spark_session_id: str,
    spark_directory: Path,
) -> None:
    rig = make_rig(
        "CREATE TABLE t (id integer PRIMARY KEY, v text)", format="avro", registry=quote(registry.url, safe="")
    )
    access = ConnectAccess(url=spark_server.url, session_id=spark_session_id)
    rig = replace(rig, stage=lambda opened: open_stage(access=access, config=rig.config, target=rig.target))
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 100) i", "UPDATE t SET v = 'b' WHERE id < 50")
    registry.answers.clear()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(rig.run)
        assert registry.asked.wait(120), "a worker that encodes asks for the id of its schema"
        for worker in spark_processes(spark_directory)[1]:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        registry.answers.set()
        running.result()
    found = changes(broker.address, TOPIC)
    assert [read.headers["operation"] for read in found] == ["insert"] * 100 + ["update"] * 49
