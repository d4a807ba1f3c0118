"""Spark connections are resolved by type: none, Spark Connect, or the master of a cluster."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.hooks import connections
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.spark.endpoint import EMBEDDED_SPARK
from tests.provider.conftest import define


def test_extras_that_a_form_leaves_empty_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"deploy-mode": "", "namespace": None, "queue": "root.etl"}
    define(monkeypatch, "cluster", {"conn_type": "spark", "host": "k8s://https://api.invalid", "extra": extra})
    cluster = connections.spark("cluster").cluster
    assert cluster is not None
    assert cluster.settings == {"spark.yarn.queue": "root.etl"}
    define(monkeypatch, "shop", "postgresql://reader@db.invalid/shop?iam=false")
    assert "iam" not in connections.database("shop", parameter="source_conn_id").url


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
