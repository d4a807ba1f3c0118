"""A message of each form gives back the source's text of each value."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.compare.kafka.forms import form_of
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.encode.columns.parse import parse
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.value_type import ValueKind, ValueType
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress
from airflow_parallel_apply.pipeline.target.kafka.messages import table_messages
from airflow_parallel_apply.pipeline.target.kafka.registry import registered_schema_id
from tests.support.kafka.registry import Registry
from tests.support.log_rows import Row, batch

VALUES = {
    "boolean": ("t", "f"),
    "integer 16": ("-32768", "0"),
    "integer 64": ("9223372036854775807", "-1"),
    "decimal 8 3": ("1.500", "-99999.999"),
    "decimal 38 0": ("0", "-12345678901234567890123456789012345678"),
    "float 32": ("3.4028235e+38", "-0"),
    "float 64": ("NaN", "5e-324"),
    "text": ("", 'a"\\\t\n é 🙂'),
    "bytes": ("\\x", "\\x00ff5c0a"),
    "date": ("0001-01-01", "9999-12-31"),
    "time": ("00:00:00", "23:59:59.000001"),
    "timestamp": ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"),
    "instant": ("1969-12-31 23:59:59.9+00", "2024-02-29 12:00:00+00"),
    "opaque": ("1 year -2 mons", "NaN"),
}
KINDS = [ValueType.parse(name) for name in VALUES]
TABLE = Relation(
    relation_id=1,
    schema="public",
    table="t",
    replica_identity=ReplicaIdentity.KEY,
    columns=(
        Column(name="id", type_name="integer", kind=KeyKind.INTEGER, key=True, value=ValueType.parse("integer 32")),
        Column(name="_unsent", type_name="text", value=ValueType.parse("text")),
        *(Column(name=f"{kind} é", type_name="any", value=kind) for kind in KINDS),
    ),
)


@pytest.fixture(params=["json", "debezium", "avro"])
def address(request: pytest.FixtureRequest) -> Iterator[KafkaAddress]:
    url = f"kafka://nowhere:9092/shop?staging=/nowhere&format={request.param}"
    if request.param != "avro":
        yield KafkaAddress.parse(Endpoint(conn_id="target", url=url))
        return
    registry = Registry()
    thread = threading.Thread(target=registry.serve_forever)
    thread.start()
    yield KafkaAddress.parse(Endpoint(conn_id="target", url=f"{url}&registry={quote(registry.url, safe='')}"))
    registry.shutdown()
    thread.join()
    registry.server_close()


def messages(address: KafkaAddress, rows: list[Row]) -> list[bytes]:
    times = CommitTimes(seqnos=np.array([0]), times=pa.array([datetime.now(UTC)], pa.timestamp("us", "UTC")))
    made = table_messages(address, TABLE, schema_id=partial(registered_schema_id, address.registry))
    found: list[bytes] = made.of(batch({1: TABLE}, rows), times).column("value").to_pylist()
    return found


def row(place: int, *, unsent: tuple[int, ...] | None = None) -> Row:
    values = [str(place), "[]", *(texts[place] for texts in VALUES.values())]
    if unsent:
        values = [None if number in unsent else value for number, value in enumerate(values)]
    return Row(seqno=0, fragno=place, operation="I", values=values, unsent=unsent)


def test_values_are_the_source_s(address: KafkaAddress) -> None:
    form = form_of(address)
    nulls = Row(seqno=0, fragno=2, operation="I", values=["2", *[None] * (1 + len(KINDS))])
    found = [form.sent(value) for value in messages(address, [row(0), row(1), nulls])]
    assert [one.unsent for one in found] == [()] * 3
    for kind, texts in zip(KINDS, VALUES.values(), strict=True):
        expected = pa.array([*texts, None], pa.string())
        if kind.kind is ValueKind.FLOAT:
            expected = parse(expected, kind)
        read = form.column([one.values[f"{kind} é"] for one in found], kind)
        assert read.type == expected.type
        assert repr(read.to_pylist()) == repr(expected.to_pylist()), kind


def test_columns_that_were_not_sent_are_named(address: KafkaAddress) -> None:
    form = form_of(address)
    (value,) = messages(address, [row(0, unsent=(1, 3))])
    assert form.sent(value).unsent == ("_unsent", f"{KINDS[1]} é")


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_column_that_became_text_is_read_on(address: KafkaAddress, kind: ValueType) -> None:
    """`text_columns` may name it from some message on."""
    form = form_of(address)
    texts = VALUES[str(kind)]
    typed = form.sent(messages(address, [row(0)])[0]).values[f"{kind} é"]
    read = form.column([typed, texts[1]], kind)
    expected = pa.array(texts, pa.string())
    if kind.kind is ValueKind.FLOAT:
        expected = parse(expected, kind)
    assert repr(read.to_pylist()) == repr(expected.to_pylist())
