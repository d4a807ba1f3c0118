"""Avro in Confluent's wire format: a registry gives the ids, and fastavro reads what was sent."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from tests.support.kafka.feeds import changes
from tests.support.kafka.registry import Registry
from tests.support.rig import Rig
from tests.support.variants import gated

TOPIC = "feed.public.t"


@gated
def test_messages_have_the_id_of_their_schema(
    make_rig: Callable[..., Rig], broker: KafkaBroker, registry: Registry
) -> None:
    rig = make_rig(
        "CREATE TABLE t (id integer PRIMARY KEY, v text)", format="avro", registry=quote(registry.url, safe="")
    ).having(ddl=DdlPolicy.SKIP)
    rig.prepare()
    assert registry.schemas == [], "a check registers nothing"
    rig.write("INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t ADD more integer", "UPDATE t SET more = 7")
    rig.run()
    found = changes(broker.address, TOPIC)
    assert [registry.read(read.key or b"") for read in found] == [{"id": 1}, {"id": 1}]
    values = [registry.read(read.value or b"") for read in found]
    assert [(row["_operation"], row["v"], row.get("more")) for row in values] == [
        ("insert", "a", None),
        ("update", "a", 7),
    ]
    assert registry.subjects == {f"{TOPIC}-key", f"{TOPIC}-value"}


def test_avro_needs_a_registry(make_rig: Callable[..., Rig]) -> None:
    with pytest.raises(ConfigurationError, match="registry"):
        make_rig("CREATE TABLE t (id integer PRIMARY KEY)", format="avro").prepare()
