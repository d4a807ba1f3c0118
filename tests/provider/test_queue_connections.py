"""Queue connections are resolved by type: a service, any database, or none."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_parallel_apply.hooks import connections
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.queue.client import queue_address
from tests.provider.conftest import define


def queue_connection(**fields: object) -> dict[str, object]:
    given = {"conn_type": "parallel_apply_queue", "host": "queue.invalid", "port": 7411, **fields}
    return {name: value for name, value in given.items() if value is not None}


@pytest.mark.parametrize(
    ("given", "url"),
    [
        (
            queue_connection(password="t/k n@", extra={"protocol": "grpcs", "ca": "/etc/our ca.pem"}),
            "grpcs://:t%2Fk%20n%40@queue.invalid:7411?ca=/etc/our%20ca.pem",
        ),
        (queue_connection(password="t", extra={"protocol": "grpcs", "ca": ""}), "grpcs://:t@queue.invalid:7411"),
        (queue_connection(host="127.0.0.1", extra={"protocol": "grpc"}), "grpc://127.0.0.1:7411"),
        (queue_connection(host="::1", extra={"protocol": "grpc"}), "grpc://[::1]:7411"),
        (
            "parallel-apply-queue://:t@queue.invalid:7411/?protocol=grpcs&ca=%2Fca.pem",
            "grpcs://:t@queue.invalid:7411?ca=/ca.pem",
        ),
    ],
)
def test_a_queue_connection_becomes_the_address_of_a_service(monkeypatch, given, url: str) -> None:
    define(monkeypatch, "our_queue", given)
    found = connections.queue("our_queue", parameter="queue")
    assert found.dsn == url
    assert "t%2F" not in repr(found)
    assert "t%2F" not in found.place
    address = queue_address(url)
    assert address.token == (given["password"] if isinstance(given, dict) and "password" in given else address.token)
    assert found.place == f"{url.partition(':')[0]}://{address.target}"


@pytest.mark.parametrize(
    "given",
    [
        "postgres://me:hush@db.invalid:5433/queues",
        "parallel-apply://me:hush@db.invalid:5433/queues",
        queue_connection(
            host="db.invalid", port=5433, login="me", password="hush", schema="queues", extra={"protocol": "postgresql"}
        ),
    ],
)
def test_a_queue_may_be_in_any_database(monkeypatch: pytest.MonkeyPatch, given) -> None:
    define(monkeypatch, "our_queue", given)
    found = connections.queue("our_queue", parameter="queue")
    assert conninfo_to_dict(found.dsn)["password"] == "hush"
    assert found.place == "postgresql://db.invalid:5433/queues"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("mysql://root@db.invalid/shop", "'mysql'"),
        ("http://queue.invalid", "'http'"),
        (queue_connection(), "protocol"),
        (queue_connection(extra={"protocol": "https"}), "https"),
        (queue_connection(extra={"protocol": ["grpc"]}), "protocol"),
        (queue_connection(extra={"protocol": "grpc"}, password="hush"), "open to the network"),
        (queue_connection(extra={"protocol": "grpc", "ca": "/ca.pem"}, host="localhost"), "TLS"),
        (queue_connection(extra={"protocol": "grpcs", "cafile": "/ca.pem"}), "cafile"),
        (queue_connection(extra={"protocol": "grpcs"}, login="me"), "login"),
        (queue_connection(extra={"protocol": "grpcs"}, schema="queues"), "database"),
        (queue_connection(extra={"protocol": "grpcs"}, port=None), "port"),
        (queue_connection(extra={"protocol": "grpcs"}, host=""), "host"),
        (queue_connection(extra={"protocol": "grpcs"}, host="grpcs://queue.invalid"), "host"),
        (queue_connection(extra={"protocol": "postgresql", "ca": "/ca.pem"}, schema="queues"), "ca"),
        (queue_connection(extra={"protocol": "postgresql"}), "names no database"),
    ],
)
def test_a_queue_connection_that_does_not_fit_is_refused_in_one_line(monkeypatch, given, named: str) -> None:
    define(monkeypatch, "our_queue", given)
    with pytest.raises(ConfigurationError, match="queue: connection 'our_queue'") as raised:
        connections.queue("our_queue", parameter="queue")
    assert named in str(raised.value)
    assert raised.value.hint
    assert "\n" not in str(raised.value)
    assert "hush" not in str(raised.value)


def test_no_queue_connection_means_the_target_s() -> None:
    assert connections.pipeline_queue("") is None
