"""Formats of files, by the names that users give. Importable where Arrow must not be."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

UNAVAILABLE: Final = "__debezium_unavailable_value"
"""In Debezium's envelope in place of a value that the source did not send."""


class Format(StrEnum):
    """The formats of an export's files."""

    PARQUET = "parquet"
    AVRO = "avro"
    JSON = "json"
    """A flat object a line."""
    DEBEZIUM = "debezium"
    """Debezium's envelope, one a line."""
    CSV = "csv"
    ARROW = "arrow"
