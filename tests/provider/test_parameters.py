"""Parameters mean the same as text, JSON and Python values."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_parallel_apply.hooks.parameters import NAMES, pipeline_config
from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.errors import ConfigurationError


def config(**values: Any) -> Any:
    return pipeline_config({"pipeline": "orders", "log_url": "/log", **values})


def test_rendered_text_and_values_make_the_same_configuration() -> None:
    text = config(channels="8", lanes="0", start="equal", ddl="apply", epoch_max_changes="500", tables='["a.*"]')
    values = config(channels=8, lanes=0, start="equal", ddl="apply", epoch_max_changes=500, tables=["a.*"])
    assert text == values


@pytest.mark.parametrize(("value", "meant"), [(True, True), ("True", True), ("false", False), (False, False)])
def test_a_flag_in_every_form(value: object, meant: bool) -> None:
    assert config(create_tables=value).create_tables is meant


def test_tables_are_made_by_a_copy_only() -> None:
    with pytest.raises(ConfigurationError, match="parameter create_tables"):
        config(create_tables=True, start="equal")


@pytest.mark.parametrize("empty", ["", None])
def test_an_empty_parameter_is_its_default(empty: object) -> None:
    names = [name for name in NAMES if name not in ("pipeline", "log_url")]
    assert config(**dict.fromkeys(names, empty)) == config()


@pytest.mark.parametrize(
    "value",
    [
        {"include": ["shop.*", "crm.a"], "exclude": ["shop.tmp_*"]},
        '{"include": ["shop.*", "crm.a"], "exclude": ["shop.tmp_*"]}',
        ["shop.*", "crm.a", "!shop.tmp_*"],
        "shop.*, crm.a, !shop.tmp_*",
    ],
)
def test_tables_in_every_form(value: object) -> None:
    assert config(tables=value).tables == TablePatterns(include=("shop.*", "crm.a"), exclude=("shop.tmp_*",))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("channels", "four"),
        ("channels", True),
        ("channels", 65),
        ("channels", 2.5),
        ("start", "fresh"),
        ("create_tables", "perhaps"),
        ("tables", "{broken"),
        ("tables", {"include": []}),
        ("tables", 7),
        ("tables", ["accounts"]),
        ("tables", {"include": ["public.*", "!public.secret"]}),
        ("pipeline", "No Name"),
        ("log_url", "logs/orders"),
        ("log_url", "~/logs"),
        ("log_directory", "logs/orders"),
        ("shard_file", "shards.toml"),
    ],
)
def test_an_error_names_the_parameter_and_what_it_takes(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"parameter {name}") as raised:
        config(**{name: value})
    assert raised.value.hint
    assert "\n" not in str(raised.value)


def test_a_log_in_a_bucket_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(ConfigurationError, match="log_url s3:…: logs of this kind are not supported") as raised:
        config(log_url="s3://key:secret@lake/log")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("value", [{"crm.*": "left(id, 2)", "*": "tenant"}, '{"crm.*": "left(id, 2)", "*": "tenant"}'])
def test_shards_by_table_and_in_every_form(value: object) -> None:
    assert config(partitioner="shard", shard_by=value).shard_by == (("crm.*", "left(id, 2)"), ("*", "tenant"))
    assert config(partitioner="shard", shard_by="tenant").shard_by == (("*", "tenant"),)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"partitioner": "shard"}, "shard_by"),
        ({"partitioner": "shard_list", "shard_by": "a"}, "shard_file"),
        ({"partitioner": "shard", "shard_by": "a", "shard_file": "/f"}, "shard_file"),
        ({"shard_by": "a"}, "shard_by"),
        ({"partitioner": "round_robin", "shard_by": "a"}, "shard_by"),
        ({"partitioner": "shard", "shard_by": {"accounts": "a"}}, "shard_by"),
        ({"partitioner": "shard", "shard_by": 7}, "shard_by"),
        ({"partitioner": "Not a name"}, "partitioner"),
    ],
)
def test_parameters_of_shards_fit_the_partitioner(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=f"parameter {named}") as raised:
        config(**values)
    assert raised.value.hint


def test_an_empty_log_lies_below_the_home_of_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", "/srv/airflow")
    assert config(log_url="").log_url == "/srv/airflow/parallel_apply/orders"
