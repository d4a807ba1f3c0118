"""The encoders, by the names of their formats; imported when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from airflow_parallel_apply.pipeline.encode.columns.rows import RowTyping
from airflow_parallel_apply.pipeline.encode.formats import Format
from airflow_parallel_apply.pipeline.encode.protocol import Encoder, MessageEncoder
from airflow_parallel_apply.pipeline.errors import ConfigurationError


def open_encoder(format_: Format, typing: RowTyping, *, server: str = "", database: str = "") -> Encoder:
    """The encoder of a table's rows. `server`, `database`: whose changes they are, which an envelope says.

    Errors: `ConfigurationError` where its library is not installed.
    """
    match format_:
        case Format.PARQUET:
            from airflow_parallel_apply.pipeline.encode.parquet.encoder import ParquetEncoder

            return ParquetEncoder(typing.schema)
        case Format.ARROW:
            from airflow_parallel_apply.pipeline.encode.arrow.encoder import ArrowEncoder

            return ArrowEncoder(typing.schema)
        case Format.CSV:
            from airflow_parallel_apply.pipeline.encode.csv.encoder import CsvEncoder

            return CsvEncoder(typing.schema)
        case Format.AVRO:
            return _avro(typing)
        case Format.JSON:
            from airflow_parallel_apply.pipeline.encode.json.encoder import JsonEncoder

            return JsonEncoder()
        case Format.DEBEZIUM:
            from airflow_parallel_apply.pipeline.encode.json.debezium import DebeziumRows
            from airflow_parallel_apply.pipeline.encode.json.encoder import JsonEncoder

            return JsonEncoder(DebeziumRows(typing=typing, server=server, database=database))


def open_messages(format_: Format, typing: RowTyping, *, server: str = "", database: str = "") -> MessageEncoder:
    """The encoder of rows as messages in JSON, flat or in Debezium's envelope. Errors: `ConfigurationError` for a
    format that has files alone.
    """
    from airflow_parallel_apply.pipeline.encode.json.encoder import JsonEncoder

    found = open_encoder(format_, typing, server=server, database=database)
    if not isinstance(found, JsonEncoder):
        raise ConfigurationError(f"there are no messages in the format {format_}", op="encode")
    return found


def open_confluent(schema: pa.Schema, name: str, *, schema_id: Callable[[dict[str, Any]], int]) -> MessageEncoder:
    """The encoder of rows as messages in Confluent's wire format. `schema_id`: the id that stands for an Avro schema.
    Errors: as of `open_encoder`.
    """
    try:
        from airflow_parallel_apply.pipeline.encode.avro.encoder import ConfluentEncoder
    except ImportError as error:
        raise _without_avro() from error
    return ConfluentEncoder(schema, name, schema_id=schema_id)


def _avro(typing: RowTyping) -> Encoder:
    try:
        from airflow_parallel_apply.pipeline.encode.avro.encoder import AvroEncoder
    except ImportError as error:
        raise _without_avro() from error
    return AvroEncoder(typing.schema, typing.table)


def _without_avro() -> ConfigurationError:
    return ConfigurationError(
        "fastavro is not installed here", op="encode", hint="pip install 'airflow-provider-parallel-apply[avro]'"
    )
