"""Connections of databases are resolved by type, before anything starts, and keep their secrets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from psycopg.conninfo import conninfo_to_dict

from airflow_parallel_apply.hooks import connections
from airflow_parallel_apply.pipeline.errors import ConfigurationError, ParallelApplyError, Unavailable
from airflow_parallel_apply.pipeline.target.open import TARGETS
from tests.provider.conftest import define
from tests.support.installed import installed

TASKS_COMMS = "airflow.sdk.execution_time.task_runner.SUPERVISOR_COMMS"


class Answering:
    """A supervisor whose API server gives one error to all that is asked."""

    def __init__(self, error: ErrorType) -> None:
        self._error = error

    def send(self, request: object) -> ErrorResponse:
        del request
        return ErrorResponse(error=self._error)


def test_a_postgres_connection_becomes_a_libpq_string(monkeypatch: pytest.MonkeyPatch) -> None:
    define(monkeypatch, "shop", "postgresql://reader:p%40ss%20word@db.invalid:5433/shop?sslmode=require")
    endpoint = connections.database("shop", parameter="source_conn_id")
    assert conninfo_to_dict(endpoint.url) == {
        "host": "db.invalid",
        "port": "5433",
        "user": "reader",
        "password": "p@ss word",
        "dbname": "shop",
        "sslmode": "require",
    }
    assert "p@ss" not in repr(endpoint)


def test_a_type_that_an_installed_package_has_a_source_for_becomes_its_url(monkeypatch, tmp_path: Path) -> None:
    define(monkeypatch, "shop", "memo-pad://reader:hush@db.invalid:7/shop")
    with installed(tmp_path, "memo", {"airflow_parallel_apply.sources": "memo-pad = memo:Memo"}):
        endpoint = connections.database("shop", parameter="source_conn_id")
    assert endpoint.scheme == "memo-pad"
    assert endpoint.place == "db.invalid:7/shop"


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"host": "file:///mnt/lake", "extra": {"format": "avro"}}, "memo+file:///mnt/lake?format=avro"),
        ({"host": "s3://lake/shop", "login": "KEY", "password": "a/b@c"}, "memo+s3://KEY:a%2Fb%40c@lake/shop"),
        ({"host": "db.invalid", "port": 3306, "schema": "shop", "login": "me"}, "memo://me@db.invalid:3306/shop"),
        ({"host": "fd00::7", "port": 3306, "schema": "shop"}, "memo://[fd00::7]:3306/shop"),
        ({"host": "a:1,b:2", "extra": {"tls": True, "ca": ""}}, "memo://a:1,b:2?tls=true"),
    ],
)
def test_a_connection_of_one_of_our_other_targets_becomes_its_url(
    monkeypatch, fields: dict[str, object], url: str
) -> None:
    monkeypatch.setitem(TARGETS.ours, "memo", "memo:Memo")
    define(monkeypatch, "lake", {"conn_type": "parallel_apply_memo", **fields})
    define(monkeypatch, "ledger", "postgresql://reader@db.invalid/ledger")
    endpoint = connections.target("lake", "ledger")
    assert endpoint.url == url
    assert endpoint.scheme == "memo"
    assert not any(secret in f"{endpoint!r} {endpoint.place}" for secret in ("KEY", "a%2Fb"))
    with pytest.raises(ConfigurationError, match=r"ledger_conn_id is empty.*parallel_apply_memo.*type postgres"):
        connections.target("lake", "")


@pytest.mark.parametrize("extra", ["sslmode=require", '["sslmode"]'])
def test_an_extra_that_airflow_cannot_read_is_refused(monkeypatch: pytest.MonkeyPatch, extra: str) -> None:
    """Airflow takes it for an empty one, and a session would begin without TLS."""
    define(monkeypatch, "shop", {"conn_type": "postgres", "host": "db.invalid", "schema": "shop", "extra": extra})
    with pytest.raises(ConfigurationError, match="source_conn_id: the extra of connection 'shop' is no JSON object"):
        connections.database("shop", parameter="source_conn_id")


@pytest.mark.parametrize(
    ("uri", "kind"),
    [("mysql://root@db.invalid/shop", "mysql"), ("spark://local%5B2%5D", "spark"), ("http://x", "http")],
)
def test_a_database_of_another_type_is_refused_by_name(monkeypatch, uri: str, kind: str) -> None:
    define(monkeypatch, "shop", uri)
    with pytest.raises(ConfigurationError) as raised:
        connections.database("shop", parameter="target_conn_id")
    line = str(raised.value)
    assert "target_conn_id" in line
    assert "'shop'" in line
    assert f"'{kind}'" in line
    assert "postgres" in line
    assert "\n" not in line


def test_a_missing_connection_is_one_line_that_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="AIRFLOW_CONN_NO_SUCH") as raised:
        connections.database("no_such", parameter="source_conn_id")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        (ErrorType.API_SERVER_ERROR, Unavailable),
        (ErrorType.CONNECTION_NOT_FOUND, ConfigurationError),
        (ErrorType.PERMISSION_DENIED, Unavailable),
    ],
)
def test_a_connection_that_the_api_server_does_not_tell_now_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, answer: ErrorType, refusal: type[ParallelApplyError]
) -> None:
    """The SDK raises the same for the first two. It tells a token that has ended as one that may not read."""
    monkeypatch.setattr(TASKS_COMMS, Answering(answer), raising=False)
    with pytest.raises(refusal, match="source_conn_id: connection 'no_such' cannot be read"):
        connections.database("no_such", parameter="source_conn_id")


def test_a_variable_that_is_cut_off_is_told_what_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    define(monkeypatch, "shop", '{"conn_type": "postgres"')
    with pytest.raises(ConfigurationError, match="cannot read the environment variable AIRFLOW_CONN_SHOP"):
        connections.database("shop", parameter="source_conn_id")


@pytest.mark.long
def test_outside_of_a_task_a_connection_is_found_in_airflow_s_database(airflow_home: Path) -> None:
    uri = "postgresql://reader@db.invalid/shop"
    add = [sys.executable, "-m", "airflow", "connections", "add", "kept_in_the_database", "--conn-uri", uri]
    subprocess.run(add, check=True, capture_output=True)
    read = (
        "from airflow_parallel_apply.hooks import connections\n"
        "print(connections.database('kept_in_the_database', parameter='--source').url)"
    )
    done = subprocess.run([sys.executable, "-c", read], check=True, capture_output=True, text=True)
    assert "host=db.invalid" in done.stdout


def test_an_extra_that_libpq_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    define(monkeypatch, "shop", "postgresql://reader@db.invalid/shop?sslmod=require")
    with pytest.raises(ConfigurationError, match="sslmod"):
        connections.database("shop", parameter="source_conn_id")


def test_a_connection_without_a_database_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    define(monkeypatch, "shop", "postgresql://reader@db.invalid")
    with pytest.raises(ConfigurationError, match="names no database"):
        connections.database("shop", parameter="source_conn_id")


def test_a_service_file_may_name_the_database_and_one_of_several_servers_takes_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    define(monkeypatch, "shop", {"conn_type": "postgres", "extra": {"service": "shop"}})
    assert conninfo_to_dict(connections.database("shop", parameter="source_conn_id").url) == {"service": "shop"}
    several = {"host": "a.invalid,b.invalid", "schema": "shop", "extra": {"target_session_attrs": "read-write"}}
    define(monkeypatch, "queue", {"conn_type": "postgres", **several})
    assert conninfo_to_dict(connections.queue("queue", parameter="queue").dsn) == {
        "host": "a.invalid,b.invalid",
        "dbname": "shop",
        "target_session_attrs": "read-write",
    }
