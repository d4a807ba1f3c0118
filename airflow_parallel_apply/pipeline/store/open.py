"""Opening what serves the rows of a unit: a pipeline's store, by its name, or the log."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.config import StoreName
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.store.log import LogStore
from airflow_parallel_apply.pipeline.store.protocol import Store


def open_store(name: StoreName, log: LogReader, unit: Unit) -> Store:
    """Return the store of a pipeline whose history is in this log, or the log itself for a unit of all channels."""
    if unit.channel is None:
        return LogStore(log)
    match name:
        case StoreName.LOG:
            return LogStore(log)
