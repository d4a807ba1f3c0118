"""Opening a pipeline's store: what serves the rows of its units, and what feeds it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_parallel_apply.pipeline.config import PipelineConfig, RouterEndpoint, StoreName
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.store.channel_log.directory import ChannelDirectory
from airflow_parallel_apply.pipeline.store.channel_log.feeder import ChannelLogFeeder
from airflow_parallel_apply.pipeline.store.channel_log.held import held_status, remove_channel_logs
from airflow_parallel_apply.pipeline.store.channel_log.store import ChannelLogStore
from airflow_parallel_apply.pipeline.store.choice import chosen_store
from airflow_parallel_apply.pipeline.store.log import LogStore
from airflow_parallel_apply.pipeline.store.protocol import Feeder, Store, StoreStatus

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.store.memory.feeder import MemoryFeeder


def open_store(config: PipelineConfig, log: LogReader) -> Store:
    """Return the store of a pipeline whose history is in this log. A lane opens one and shares it with its stage."""
    store = chosen_store(config).store
    if store is StoreName.MEMORY:
        from airflow_parallel_apply.pipeline.store.memory.store import MemoryStore

        return MemoryStore(log, _router(log, config.router))
    return ChannelLogStore(log) if store is StoreName.CHANNEL_LOG else LogStore(log)


def open_feeder(config: PipelineConfig, log: LogReader, routing: Routing) -> Feeder | None:
    """Return what fills the store of a pipeline; None for one that holds no rows."""
    store = chosen_store(config).store
    if store is StoreName.MEMORY:
        return _memory_feeder(log, config.pipeline, routing, config.router)
    if store is not StoreName.CHANNEL_LOG:
        return None
    directory = ChannelDirectory.of_pipeline(log, config.pipeline, routing)
    return ChannelLogFeeder(directory, log, pipeline=config.pipeline, channels=routing.channels)


def store_status(
    log: LogReader, pipeline: str, routing: Routing, router: RouterEndpoint | None = None
) -> StoreStatus | None:
    """Look at what is held for a pipeline beside its log, or in a router: the one that is named, or the embedded one of
    this host; None where that is nothing. Errors: `LogError`.
    """
    if log.root is not None:
        found = held_status(ChannelDirectory.of_pipeline(log, pipeline, routing), routing.channels)
        if found.held_seqno != NO_SEQNO:
            return found
    with closing(_memory_feeder(log, pipeline, routing, router)) as feeder:
        told = feeder.status()
    return told if told.channels or (router is not None and told.failure) else None


def _memory_feeder(log: LogReader, pipeline: str, routing: Routing, router: RouterEndpoint | None) -> MemoryFeeder:
    # Late: pipelines with another store need no Flight.
    from airflow_parallel_apply.pipeline.store.memory.feeder import MemoryFeeder
    from airflow_parallel_apply.pipeline.store.memory.subject import Subject

    return MemoryFeeder(Subject.of_pipeline(log, pipeline, routing), _router(log, router))


def _router(log: LogReader, router: RouterEndpoint | None) -> RouterEndpoint | None:
    """The router that is named; else that which serves the log, where one does; None: the embedded one."""
    if router is not None or log.router is None:
        return router
    return RouterEndpoint(conn_id="", url=log.router.url(with_token=True, with_path=False))


def remove_held(log_root: Path, pipeline: str | None = None) -> int:
    """Remove what stores hold for a pipeline, or for all, beside a log; returns how many of them did. Errors:
    `LogError`.
    """
    return remove_channel_logs(log_root, pipeline)
