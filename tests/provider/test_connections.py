"""Connections are resolved by type, before anything starts, and keep their secrets."""

from __future__ import annotations

import json
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
from airflow_parallel_apply.queue.client import queue_address
from airflow_parallel_apply.spark.endpoint import EMBEDDED_SPARK
from tests.support.installed import installed

TASKS_COMMS = "airflow.sdk.execution_time.task_runner.SUPERVISOR_COMMS"


class Answering:
    """A supervisor whose API server gives one error to all that is asked."""

    def __init__(self, error: ErrorType) -> None:
        self._error = error

    def send(self, request: object) -> ErrorResponse:
        del request
        return ErrorResponse(error=self._error)


def define(monkeypatch: pytest.MonkeyPatch, conn_id: str, value: str | dict[str, object]) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", value if isinstance(value, str) else json.dumps(value))


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


def test_extras_that_a_form_leaves_empty_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"deploy-mode": "", "namespace": None, "queue": "root.etl"}
    define(monkeypatch, "cluster", {"conn_type": "spark", "host": "k8s://https://api.invalid", "extra": extra})
    cluster = connections.spark("cluster").cluster
    assert cluster is not None
    assert cluster.settings == {"spark.yarn.queue": "root.etl"}
    define(monkeypatch, "shop", "postgresql://reader@db.invalid/shop?iam=false")
    assert "iam" not in connections.database("shop", parameter="source_conn_id").url


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
    with pytest.raises(ConfigurationError, match="AIRFLOW_CONN_SHOP to a URI or to whole JSON"):
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


def test_no_spark_connection_means_the_embedded_one() -> None:
    assert connections.spark("") is EMBEDDED_SPARK


def test_a_spark_connect_connection_becomes_a_url_that_hides_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    define(
        monkeypatch,
        "cluster",
        {
            "conn_type": "spark_connect",
            "host": "sc://spark.invalid",
            "port": 15009,
            "login": "me",
            "password": "t/k=n",
            "extra": {"use_ssl": True},
        },
    )
    spark = connections.spark("cluster")
    assert spark.url == "sc://spark.invalid:15009/;user_id=me;token=t%2Fk%3Dn;use_ssl=true"
    assert "t%2F" not in repr(spark)


def test_a_spark_connect_connection_needs_only_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    define(monkeypatch, "cluster", {"conn_type": "spark_connect", "host": "spark.invalid"})
    assert connections.spark("cluster").url == "sc://spark.invalid:15002"


@pytest.mark.parametrize("uri", ["postgresql://a@b/c", "http://spark.invalid", "sparkconnect://spark.invalid"])
def test_spark_of_another_type_is_refused_by_type(monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    define(monkeypatch, "cluster", uri)
    with pytest.raises(ConfigurationError, match="spark_connect") as raised:
        connections.spark("cluster")
    assert "'cluster'" in str(raised.value)


@pytest.mark.parametrize(
    ("given", "master"),
    [
        ("spark://master.invalid:7077", "spark://master.invalid:7077"),
        ({"conn_type": "spark", "host": "spark://master.invalid", "port": 7077}, "spark://master.invalid:7077"),
        (
            {"conn_type": "spark", "host": "spark://a.invalid:7077,b.invalid:7077"},
            "spark://a.invalid:7077,b.invalid:7077",
        ),
        ({"conn_type": "spark", "host": "yarn"}, "yarn"),
        ({"conn_type": "spark", "host": "k8s://https://k8s.invalid", "port": 6443}, "k8s://https://k8s.invalid:6443"),
    ],
)
def test_a_spark_connection_names_the_cluster_s_master(monkeypatch, given, master: str) -> None:
    define(monkeypatch, "cluster", given)
    spark = connections.spark("cluster")
    assert spark.cluster is not None
    assert spark.cluster.master == master
    assert not spark.is_embedded


@pytest.mark.parametrize(
    "uri",
    [
        "spark://local%5B2%5D",
        "spark://local",
        "spark://",
        "spark://yran",
        "spark://master.invalid",
        "spark://mesos%3A%2F%2Fa:1",
    ],
)
def test_a_mistyped_master_is_refused_and_never_becomes_yarn(monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    define(monkeypatch, "cluster", uri)
    with pytest.raises(ConfigurationError, match="spark_conn_id: connection 'cluster' has type 'spark'") as raised:
        connections.spark("cluster")
    assert raised.value.hint
    assert "\n" not in str(raised.value)


def test_spark_s_settings_come_from_the_connection_and_stay_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = {"spark.executor.memory": "2g", "spark.authenticate.secret": "hush", "spark.authenticate": True}
    extra = {"conf": conf, "queue": "night", "deploy-mode": "client"}
    define(monkeypatch, "cluster", {"conn_type": "spark", "host": "yarn", "extra": extra})
    spark = connections.spark("cluster")
    assert spark.cluster is not None
    assert spark.cluster.settings == {
        "spark.executor.memory": "2g",
        "spark.authenticate.secret": "hush",
        "spark.authenticate": "true",
        "spark.yarn.queue": "night",
    }
    assert "hush" not in repr(spark)


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"deploy-mode": "cluster"}, "deploy-mode"),
        ({"spark-binary": "spark3-submit"}, "spark-binary"),
        ({"conf": "spark.executor.memory=2g"}, "conf"),
        ({"conf": {"spark.master": "local[2]"}}, "conf"),
    ],
)
def test_what_a_lane_s_application_cannot_be_is_refused(monkeypatch, extra: dict[str, object], named: str) -> None:
    define(monkeypatch, "cluster", {"conn_type": "spark", "host": "yarn", "extra": extra})
    with pytest.raises(ConfigurationError, match=named):
        connections.spark("cluster")


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
