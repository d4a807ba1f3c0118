"""The inputs and outputs of Spark's jobs, as Spark types.

Given as types, not as text, Spark Connect asks the server neither what the text means nor what a DataFrame's columns
are: two calls less for each job, a third of the time that a small one takes.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, StringType, StructField, StructType

_LOG_TYPES: Final[dict[str, DataType]] = {
    "seqno": LongType(),
    "fragno": LongType(),
    "relation_id": IntegerType(),
    "operation": StringType(),
    "bucket": IntegerType(),
    "key": StringType(),
    "key_order": LongType(),
    "previous_seqno": LongType(),
    "next_seqno": LongType(),
    "values": StringType(),
    "unsent": StringType(),
    "old_key": StringType(),
}


def _schema(types: dict[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


LOG_SCHEMA: Final = _schema(_LOG_TYPES)
"""`pipeline.log.schema.ROWS`, so that Spark opens no file to learn it."""

_NOT_LOADED: Final = ("fragno", "bucket", "key_order", "old_key")
"""Fragno and key_order are needed for the order only, bucket for the filter."""
LOADED_SCHEMA: Final = _schema({name: kind for name, kind in _LOG_TYPES.items() if name not in _NOT_LOADED})
"""Columns that the loader reads."""

_NOT_IN_CHANGES: Final = ("key_order", "previous_seqno", "next_seqno")
CHANGES_SCHEMA: Final = _schema({name: kind for name, kind in _LOG_TYPES.items() if name not in _NOT_IN_CHANGES})
"""Columns that the loader of a target reads that takes every change."""

LISTED: Final = ("values", "old_key")
"""Columns of the log that the data source gives as lists."""
TABLE_COLUMN: Final = "table"
SOURCE_SCHEMA: Final = _schema(
    _LOG_TYPES | dict.fromkeys(LISTED, ArrayType(StringType())) | {TABLE_COLUMN: StringType()}
)
"""Columns that the data source returns."""

RESULT_SCHEMA: Final = _schema({"result": StringType()})
"""One text for each task: JSON."""
