"""Opening a pipeline's store: what serves the rows of its units, and what feeds it."""

from __future__ import annotations

from pathlib import Path

from airflow_parallel_apply.pipeline.config import PipelineConfig, StoreName
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.store.channel_log.directory import ChannelDirectory
from airflow_parallel_apply.pipeline.store.channel_log.feeder import ChannelLogFeeder
from airflow_parallel_apply.pipeline.store.channel_log.held import held_status, remove_channel_logs
from airflow_parallel_apply.pipeline.store.channel_log.store import ChannelLogStore
from airflow_parallel_apply.pipeline.store.log import LogStore
from airflow_parallel_apply.pipeline.store.protocol import Feeder, Store, StoreStatus


def open_store(config: PipelineConfig, log: LogReader) -> Store:
    """Return the store of a pipeline whose history is in this log. A lane opens one and shares it with its stage."""
    match config.store:
        case StoreName.LOG:
            return LogStore(log)
        case StoreName.CHANNEL_LOG:
            return ChannelLogStore(log)


def holds_rows(name: StoreName) -> bool:
    """True if the store is to be fed."""
    return name is not StoreName.LOG


def open_feeder(name: StoreName, log: LogReader, pipeline: str, routing: Routing) -> Feeder | None:
    """Return what fills the store of a pipeline; None for one that holds no rows."""
    match name:
        case StoreName.LOG:
            return None
        case StoreName.CHANNEL_LOG:
            directory = ChannelDirectory.of_pipeline(log, pipeline, routing)
            return ChannelLogFeeder(directory, pipeline=pipeline, channels=routing.channels)


def store_status(log: LogReader, pipeline: str, routing: Routing) -> StoreStatus | None:
    """Look at what is held for a pipeline beside its log; None where that is nothing. Errors: `LogError`."""
    if log.root is None:
        return None
    return held_status(ChannelDirectory.of_pipeline(log, pipeline, routing), routing.channels)


def remove_held(log_root: Path, pipeline: str | None = None) -> int:
    """Remove what stores hold for a pipeline, or for all, beside a log; returns how many of them did. Errors:
    `LogError`.
    """
    return remove_channel_logs(log_root, pipeline)
