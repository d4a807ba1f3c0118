"""Opening a pipeline's store by its name."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.config import StoreName
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.store.log import LogStore
from airflow_parallel_apply.pipeline.store.protocol import Store


def open_store(name: StoreName, log: LogReader) -> Store:
    """The store of a pipeline whose history is in this log."""
    match name:
        case StoreName.LOG:
            return LogStore(log)
