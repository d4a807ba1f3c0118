"""The hook, the sensors and the triggers of queues, against the service and a database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.providers_manager import ProvidersManager
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, AirflowSkipException, TaskDeferred
from airflow.sdk.module_loading import import_string

from airflow_parallel_apply.demo.ports import free_port
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.hooks.queue import QueueCounts, QueueHook
from airflow_parallel_apply.queue import Insert, Queue, QueueUnavailable
from airflow_parallel_apply.queue.postgres import migrate
from airflow_parallel_apply.sensors import QueueEmptySensor, QueueStatsSensor
from airflow_parallel_apply.triggers import QueueEmptyTrigger, QueueStatsTrigger
from tests.support.queue_service import ServedQueue
from tests.support.variants import gated

CONN = "our_queue"
TOKEN = "token-of-ours"

BUNDLE = "airflow.dag_processing.bundles.local.LocalDagBundle"
ORDERS = """
from contextlib import closing
from airflow.sdk import DAG, task
from airflow_parallel_apply.hooks.queue import QueueHook
from airflow_parallel_apply.queue import Insert
from airflow_parallel_apply.sensors import QueueEmptySensor, QueueStatsSensor

with DAG("orders", schedule=None):
    @task
    def feed():
        with closing(QueueHook("our_queue").get_conn()) as queue:
            queue.modify(claimant="feed", insert=[Insert(queue="orders", value={"order": 17})])

    @task
    def work():
        with closing(QueueHook("our_queue").get_conn()) as queue:
            (found,) = queue.tasks("orders")
            queue.modify(claimant="work", delete=[found.ref])

    filled = QueueStatsSensor(task_id="filled", queue_conn_id="our_queue", queues="orders", at_least=1)
    emptied = QueueEmptySensor(task_id="emptied", queue_conn_id="our_queue", queues="orders")
    feed() >> filled >> work() >> emptied
"""


@pytest.fixture(params=["service", "database"])
def queue(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Queue]:
    """Behind the connection `our_queue`."""
    with ExitStack() as stack:
        if request.param == "service":
            served = ServedQueue(tmp_path / "queue", token=TOKEN)
            stack.callback(served.stop)
            define(monkeypatch, served.url, TOKEN)
        else:
            server: PostgresServer = request.getfixturevalue("target_server")
            database: str = request.getfixturevalue("target_database")
            migrate(server.dsn(database))
            monkeypatch.setenv("AIRFLOW_CONN_OUR_QUEUE", server.uri(database))
        yield stack.enter_context(closing(QueueHook(CONN).get_conn()))


def define(monkeypatch: pytest.MonkeyPatch, url: str, token: str) -> None:
    host, _, port = url.removeprefix("grpc://").rpartition(":")
    connection = {
        "conn_type": "parallel_apply_queue",
        "host": host,
        "port": int(port),
        "password": token,
        "extra": {"protocol": "grpc"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_OUR_QUEUE", json.dumps(connection))


def put(queue: Queue, name: str, count: int = 1) -> Any:
    return queue.modify(claimant="maker", insert=[Insert(queue=name, value=n) for n in range(count)])


def event(trigger: Any, meanwhile: Any = None) -> dict[str, Any]:
    async def first() -> Any:
        waiting = asyncio.create_task(anext(trigger.run()))
        if meanwhile is not None:
            # It has begun to wait by then, or will look for the first time afterwards: either way it must end.
            await asyncio.wait([waiting], timeout=0.5)
            assert not waiting.done()
            await asyncio.to_thread(meanwhile)
        return (await asyncio.wait_for(waiting, timeout=180)).payload

    return asyncio.run(first())


def deferred(sensor: Any) -> Any:
    with pytest.raises(TaskDeferred) as raised:
        sensor.execute({})
    path, arguments = raised.value.trigger.serialize()
    assert TOKEN not in json.dumps(arguments)
    again = import_string(path)(**json.loads(json.dumps(arguments)))
    assert again.serialize() == (path, arguments)
    assert raised.value.timeout.total_seconds() == sensor.timeout
    return again


def test_the_hook_gives_the_queue_and_counts_it(queue: Queue) -> None:
    put(queue, "orders", 3)
    put(queue, "other")
    assert QueueHook(CONN).counts(["orders"]) == QueueCounts(queues=1, size=3, available=3)
    assert QueueHook(CONN).counts(prefix=["o"]).size == 4
    assert QueueHook(CONN).test_connection() == (True, "2 queues with 4 tasks")


def test_airflow_finds_the_hook_by_the_connection_s_type(monkeypatch: pytest.MonkeyPatch) -> None:
    define(monkeypatch, "grpc://127.0.0.1:1", TOKEN)
    found = BaseHook.get_hook(CONN)
    assert isinstance(found, QueueHook)
    assert found.endpoint.place == "grpc://127.0.0.1:1"


def test_a_sensor_that_has_nothing_to_wait_for_ends_at_once(queue: Queue) -> None:
    put(queue, "orders", 3)
    assert QueueEmptySensor(task_id="s", queue_conn_id=CONN, queues="none").execute({})["size"] == 0
    enough = QueueStatsSensor(task_id="s", queue_conn_id=CONN, queues=["orders"], at_least=3)
    assert enough.execute({})["available"] == 3


@gated
def test_a_sensor_waits_deferred_until_the_queues_are_empty(queue: Queue) -> None:
    (made,) = put(queue, "orders")
    sensor = QueueEmptySensor(task_id="s", queue_conn_id=CONN, queues="orders", poke_interval=0.05)
    trigger = deferred(sensor)
    assert isinstance(trigger, QueueEmptyTrigger)
    told = event(trigger, lambda: queue.modify(claimant="me", delete=[made.ref]))
    assert sensor.resume({}, told) == QueueCounts().to_json()


@gated
def test_a_sensor_waits_deferred_until_a_count_lies_within_its_bounds(queue: Queue) -> None:
    put(queue, "orders/a")
    sensor = QueueStatsSensor(
        task_id="s", queue_conn_id=CONN, prefix="orders/", measure="size", at_least="3", at_most=4, poke_interval=0.05
    )
    trigger = deferred(sensor)
    assert isinstance(trigger, QueueStatsTrigger)
    told = event(trigger, lambda: put(queue, "orders/b", 2))
    assert sensor.resume({}, told) == {**QueueCounts().to_json(), "queues": 2, "size": 3, "available": 3}


def test_a_sensor_that_may_not_defer_pokes(queue: Queue) -> None:
    put(queue, "orders")
    sensor = QueueStatsSensor(task_id="s", queue_conn_id=CONN, queues="orders", at_least=1, deferrable=False)
    assert sensor.execute({})["size"] == 1


def test_a_trigger_outlives_a_service_that_is_started_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = ServedQueue(tmp_path / "queue", listen=f"127.0.0.1:{free_port()}")
    define(monkeypatch, first.url, "")
    with closing(QueueHook(CONN).get_conn()) as queue:
        (made,) = put(queue, "orders")
        another: list[ServedQueue] = []

        def start_anew() -> None:
            first.stop()
            another.append(ServedQueue(tmp_path / "queue", listen=first.url.removeprefix("grpc://")))
            queue.modify(claimant="me", delete=[made.ref])

        trigger = QueueEmptyTrigger(queue_conn_id=CONN, queues=["orders"], prefix=[], poll_seconds=0.05)
        assert event(trigger, start_anew)["status"] == "met"
        another[0].stop()


def test_a_token_that_is_refused_ends_the_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served = ServedQueue(tmp_path / "queue", token=TOKEN)
    define(monkeypatch, served.url, "another")
    told = event(QueueEmptyTrigger(queue_conn_id=CONN, queues=["q"], prefix=[], poll_seconds=0.05))
    sensor = QueueEmptySensor(task_id="s", queue_conn_id=CONN, queues="q")
    assert told["status"] == "error"
    for call in (lambda: sensor.resume({}, told), lambda: sensor.execute({})):
        with pytest.raises(AirflowFailException, match="token"):
            call()
    works, why = QueueHook(CONN).test_connection()
    assert (works, "token" in why) == (False, True)
    served.stop()


def test_a_queue_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OUR_QUEUE", "postgres://nobody@127.0.0.1:1/none")
    deferred(QueueEmptySensor(task_id="s", queue_conn_id=CONN, queues="q"))
    at_once = {"deferrable": False, "timeout": 0, "poke_interval": 0}
    for soft_fail, ends in ((False, AirflowSensorTimeout), (True, AirflowSkipException)):
        poking = QueueEmptySensor(task_id="s", queue_conn_id=CONN, queues="q", soft_fail=soft_fail, **at_once)
        with pytest.raises(ends):
            poking.execute({})
    with pytest.raises(QueueUnavailable):
        QueueHook(CONN).counts()


@gated
@pytest.mark.parametrize(
    ("kind", "told", "named"),
    [
        (QueueEmptySensor, {}, "name what to wait for"),
        (QueueEmptySensor, {"queues": ["", ""]}, "name what to wait for"),
        (QueueStatsSensor, {"queues": "q"}, "at_least"),
        (QueueStatsSensor, {"queues": "q", "measure": "weight", "at_least": 1}, "weight"),
        (QueueStatsSensor, {"queues": "q", "at_least": "many"}, "many"),
        (QueueEmptySensor, {"queues": "q", "queue_conn_id": "no_such"}, "AIRFLOW_CONN_NO_SUCH"),
    ],
)
def test_a_sensor_told_nonsense_fails_for_good(queue: Queue, kind: Any, told: dict[str, Any], named: str) -> None:
    with pytest.raises(AirflowFailException, match=named):
        kind(task_id="s", **{"queue_conn_id": CONN, **told}).execute({})
    with pytest.raises(AirflowSkipException, match=named):
        kind(task_id="s", soft_fail=True, **{"queue_conn_id": CONN, **told}).execute({})


@gated
@pytest.mark.usefixtures("airflow_home")
def test_a_dag_feeds_a_queue_and_waits_until_somebody_has_emptied_it(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "dags" / "orders.py"
    file.parent.mkdir()
    file.write_text(ORDERS)
    bundle = {"name": "ours", "classpath": BUNDLE, "kwargs": {"path": str(file.parent)}}
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps([bundle]))
    run = DagBag(str(file)).dags["orders"].test()
    assert {ti.task_id: str(ti.state) for ti in run.get_task_instances()} == dict.fromkeys(
        ("feed", "filled", "work", "emptied"), "success"
    )
    assert queue.queue_stats() == ()


@gated
def test_the_connection_form_shows_our_fields() -> None:
    manager = ProvidersManager()
    widgets = {
        name: field.field for name, field in manager.connection_form_widgets.items() if "parallel_apply_queue" in name
    }
    assert sorted(widgets) == [f"extra__parallel_apply_queue__{name}" for name in ("ca", "cert", "key", "protocol")]
    protocol = widgets["extra__parallel_apply_queue__protocol"]
    assert protocol["schema"]["enum"] == ["grpcs", "grpc", "postgresql"]
    assert (
        manager.field_behaviours["parallel_apply_queue"]["relabeling"]["password"] == "Token, or password (PostgreSQL)"
    )
