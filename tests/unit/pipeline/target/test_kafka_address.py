"""The address of a Kafka target: what it says, and what it refuses by the option's name."""

from __future__ import annotations

import io

import pytest

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import ConfigurationError, Unavailable
from airflow_parallel_apply.pipeline.target.kafka import KafkaAddress, registry

STAGING = "staging=/mnt/staging"


def parsed(url: str) -> KafkaAddress:
    return KafkaAddress.parse(Endpoint(conn_id="target", url=url))


def test_an_address_names_brokers_prefix_and_options() -> None:
    found = parsed(f"kafka://a:9092,b:9093/shop?{STAGING}&tombstones=true&partitions=12&ssl.ca.location=/ca.pem")
    assert (found.servers, found.prefix, found.tombstones, found.partitions) == ("a:9092,b:9093", "shop", True, 12)
    assert found.client_options == {"bootstrap.servers": "a:9092,b:9093", "ssl.ca.location": "/ca.pem"}


def test_a_login_speaks_sasl_over_tls_unless_it_is_told_otherwise() -> None:
    found = parsed(f"kafka://user:p%40ss@a:9092/shop?{STAGING}&sasl.mechanism=SCRAM-SHA-512")
    assert found.client_options == {
        "bootstrap.servers": "a:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "user",
        "sasl.password": "p@ss",
    }
    assert "p@ss" not in repr(found)


@pytest.mark.parametrize(
    ("url", "option"),
    [
        ("kafka://a:9092/shop", "staging"),
        (f"kafka:///shop?{STAGING}", "host"),
        (f"kafka://a:9092/?{STAGING}", "schema"),
        (f"kafka://a:9092/shop?{STAGING}&format=xml", "format"),
        (f"kafka://a:9092/shop?{STAGING}&format=avro", "registry"),
        (f"kafka://a:9092/shop?{STAGING}&tombstones=perhaps", "tombstones"),
        (f"kafka://a:9092/shop?{STAGING}&partitions=0", "partitions"),
        (f"kafka://a:9092/shop?{STAGING}&transactional.id=mine", "transactional.id"),
        (f"kafka://a:9092/shop?{STAGING}&acks=1", "acks"),
        (f"kafka://a:9092/shop?{STAGING}&colour=blue", "colour"),
    ],
)
def test_an_option_that_is_not_usable_is_named(url: str, option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"option {option}:"):
        parsed(url)


@pytest.mark.parametrize("answer", [b"<html>Sign in</html>", b"{}", b"[]", b"null"])
def test_a_page_that_answers_for_the_schema_registry_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr(registry, "urlopen", lambda *_, **__: io.BytesIO(answer))
    with pytest.raises(Unavailable, match="is no registry"):
        registry.registered_schema_id("https://gateway", "orders-value", {})
