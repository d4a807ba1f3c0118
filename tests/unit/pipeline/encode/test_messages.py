"""Messages for topics: Confluent's wire format, and Debezium's envelope."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime

import fastavro
import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.encode.avro.schema import avro_schema, decimal_size, legal_names
from airflow_parallel_apply.pipeline.encode.columns.rows import row_typing, typed_rows
from airflow_parallel_apply.pipeline.encode.json.debezium import DebeziumRows
from airflow_parallel_apply.pipeline.encode.open import open_confluent
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.model.value_type import ValueType
from tests.support.log_rows import Row, batch, relation

_T = relation(1, 'odd "t"', "id n v", key="id", schema="s")
T = replace(
    _T,
    columns=tuple(
        replace(column, value=ValueType.parse(value))
        for column, value in zip(_T.columns, ("integer 64", "decimal 6 2", "text"), strict=True)
    ),
)
TYPING = row_typing(T)
MOMENT = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)


def typed(*rows: Row, copied_through: int = -1) -> pa.RecordBatch:
    times = pa.array([MOMENT] * len(rows), pa.timestamp("us", tz="UTC"))
    return typed_rows(batch({1: T}, rows), TYPING, times, copied_through=copied_through)


ROWS = (
    Row(seqno=7, operation="I", values=["1", "1.50", 'a "quoted" one']),
    Row(seqno=8, operation="U", values=["1", "2.50", None], unsent=[2]),
    Row(seqno=9, operation="X", values=["1", None, None]),
    Row(seqno=9, operation="K", values=["2", "2.50", "b"], fragno=1, old_key=["1"]),
    Row(seqno=10, operation="D", values=["2", None, None]),
    Row(seqno=11, operation="T", values=["cascade"]),
)


def test_a_confluent_message_is_a_zero_the_schemas_id_and_the_record() -> None:
    encoder = open_confluent(TYPING.schema, TYPING.table, schema_id=lambda _: 4_000_000_000)
    rows = typed(*ROWS)
    messages = encoder.messages(rows).to_pylist()
    assert [message[:5] for message in messages] == [b"\x00" + (4_000_000_000).to_bytes(4, "big")] * 6
    schema = fastavro.parse_schema(encoder.schema)  # type: ignore[attr-defined]
    read = [fastavro.schemaless_reader(io.BytesIO(message[5:]), schema) for message in messages]
    assert read == rows.to_pylist()


@pytest.mark.parametrize("schema_id", [-1, 2**32])
def test_a_schema_id_that_does_not_fit_is_refused(schema_id: int) -> None:
    with pytest.raises(ConfigurationError, match="schema id"):
        open_confluent(TYPING.schema, TYPING.table, schema_id=lambda _: schema_id)


def test_a_row_of_the_initial_copy_is_a_read_as_debeziums_snapshot_has_it() -> None:
    made = DebeziumRows(typing=TYPING, server="7", database="shop")(typed(ROWS[0], copied_through=7))
    envelope = json.loads(made[0].as_py())
    assert (envelope["op"], envelope["before"], envelope["after"]["id"]) == ("r", None, 1)


def test_each_change_is_an_envelope_as_debezium_has_it() -> None:
    made = [
        json.loads(text) for text in DebeziumRows(typing=TYPING, server="7", database="shop")(typed(*ROWS)).to_pylist()
    ]
    assert [one["op"] for one in made] == ["c", "u", "d", "c", "d", "t"]
    key = {"id": 1, "n": None, "v": None}
    assert [one["before"] for one in made] == [None, None, key, None, {**key, "id": 2}, None]
    assert [one["after"] for one in made] == [
        {"id": 1, "n": "1.50", "v": 'a "quoted" one'},
        {"id": 1, "n": "2.50", "v": "__debezium_unavailable_value"},
        None,
        {"id": 2, "n": "2.50", "v": "b"},
        None,
        None,
    ]
    millis = int(MOMENT.timestamp() * 1000)
    assert made[3]["source"] == {
        "connector": "parallel_apply",
        "name": "7",
        "db": "shop",
        "schema": "s",
        "table": 'odd "t"',
        "ts_ms": millis,
        "txId": 9,
    }
    assert made[3]["ts_ms"] == millis
    assert made[3]["transaction"] == {"id": "9", "total_order": 2}


def test_names_that_avro_does_not_allow_are_made_so_and_the_field_says_what_they_were() -> None:
    assert legal_names(["a:b", "a_b", "a?b", "1", "", "ü"]) == ["a_b_", "a_b", "a_b__", "_1", "_", "__"]
    made = avro_schema(pa.schema([("a:b", pa.int64()), ("c", pa.int64())]), "s.t")
    assert made["name"] == "s_t"
    assert [field.get("column") for field in made["fields"]] == ["a:b", None]
    fastavro.parse_schema(made)


def test_a_decimal_takes_as_many_bytes_as_its_largest_value_needs() -> None:
    for precision in range(1, 39):
        largest = 10**precision - 1
        size = decimal_size(precision)
        (-largest).to_bytes(size, "big", signed=True)
        with pytest.raises(OverflowError):
            largest.to_bytes(size - 1, "big", signed=True)
