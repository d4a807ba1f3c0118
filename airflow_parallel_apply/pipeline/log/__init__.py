"""The log: see `protocol` for its law, `schema` for its columns, `directory` for its files."""

from airflow_parallel_apply.pipeline.log.open import log_exists, open_reader
from airflow_parallel_apply.pipeline.log.options import WriterOptions
from airflow_parallel_apply.pipeline.log.protocol import (
    LogIdentity,
    LogReader,
    LogState,
    LogWriter,
    RowGroup,
    Segment,
)

__all__ = [
    "LogIdentity",
    "LogReader",
    "LogState",
    "LogWriter",
    "RowGroup",
    "Segment",
    "WriterOptions",
    "log_exists",
    "open_reader",
]
