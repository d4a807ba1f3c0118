"""Feeds a pipeline's store from its log, along the plan: one reading of the log, however many channels there are.

Whoever has planned calls it: the task `route`, `open`, and the lanes' capture turns; no process stays for it. It owns
nothing and needs no lease: what is fed is a function of the log and the plan's routing. Where it fails, the log serves
what is missing, so a failure is told and nothing ends by it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.config import PipelineConfig, StoreName
from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.log.protocol import KEY_ORDER_VERSION, LogReader
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import Epoch, EpochKind
from airflow_parallel_apply.pipeline.model.position import low_watermark
from airflow_parallel_apply.pipeline.partition.open import open_partitioner
from airflow_parallel_apply.pipeline.partition.protocol import Partitioner
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.partition.split import split
from airflow_parallel_apply.pipeline.store.choice import chosen_store
from airflow_parallel_apply.pipeline.store.open import open_feeder, remove_held
from airflow_parallel_apply.pipeline.store.protocol import Feeder, StoreStatus, Stretch

_logger = logging.getLogger(__name__)

_told: Final[set[tuple[str, str]]] = set()
"""(pipeline, reason) of the failures that were told."""

STRETCH_ROWS: Final = 2_000_000
"""Rows that are fed at a time: what a crash costs, and how soon the first of them are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """The outcome of one call. `failure`: why the log serves what was to be fed."""

    stretches: int = 0
    rows: int = 0
    trimmed_files: int = 0
    seconds: float = 0.0
    failure: str = ""
    status: StoreStatus | None = None
    """The store's content now; None where nothing was fed."""


def feed_store(config: PipelineConfig, log: LogReader, session: PipelineSession, *, trims: bool = True) -> Fed:
    """Feed what is planned above the positions and not held yet. `trims`: let go of what the target has on disk.
    Nothing for a store that holds no rows. Errors: those of the session.
    """
    store = chosen_store(config).store
    if trims and store is not StoreName.CHANNEL_LOG:
        _let_go(log, config.pipeline)
    if store is StoreName.LOG:
        return Fed()
    routing = session.ledger.routing()
    feeder = open_feeder(config, log, routing)
    if feeder is None:
        return Fed()
    with closing(feeder):
        return _fed(config, log, session, routing, feeder, trims=trims)


def _fed(
    config: PipelineConfig,
    log: LogReader,
    session: PipelineSession,
    routing: Routing,
    feeder: Feeder,
    *,
    trims: bool,
) -> Fed:
    started = time.monotonic()
    positions = session.target.positions(durable=trims)
    epochs = session.ledger.epochs(above_seqno=low_watermark(positions))
    stretches = rows = trimmed = 0
    try:
        trimmed = feeder.trim(positions) if trims else 0
        for stretch in stretches_of(epochs):
            for lacking in feeder.lacks(stretch):
                rows += feed_stretch(log, routing, feeder, lacking)
                stretches += 1
    except (LogError, OSError, pa.ArrowException) as error:
        feeder.abandon()
        _tell(config, str(error))
        return Fed(failure=str(error), seconds=time.monotonic() - started)
    except BaseException:
        feeder.abandon()
        raise
    seconds = time.monotonic() - started
    return Fed(stretches=stretches, rows=rows, trimmed_files=trimmed, seconds=seconds, status=feeder.status())


def _tell(config: PipelineConfig, why: str) -> None:
    """Once a process for each reason: a lane feeds at every step of its captures."""
    told = (config.pipeline, why)
    if told not in _told:
        _told.add(told)
        _logger.warning("the store %s was not fed, the log serves its channels: %s", chosen_store(config).store, why)


def _let_go(log: LogReader, pipeline: str) -> None:
    """Remove what runs with another store, or consistency, have left."""
    if log.root is None:
        return
    try:
        remove_held(log.root, pipeline)
    except (LogError, OSError) as error:
        _logger.warning("what the former store held stays on the disk: %s", error)


def stretches_of(epochs: Sequence[Epoch]) -> Iterator[Stretch]:
    """Parallel epochs that follow one another, about `STRETCH_ROWS` together; serial ones are read from the log."""
    near: list[Epoch] = []
    for epoch in epochs:
        is_parallel = epoch.kind is EpochKind.PARALLEL
        follows = not near or epoch.first_seqno == near[-1].last_seqno + 1
        if near and not (is_parallel and follows and sum(one.row_count for one in near) < STRETCH_ROWS):
            yield Stretch(near[0].first_seqno - 1, near[-1].last_seqno)
            near = []
        if is_parallel:
            near.append(epoch)
    if near:
        yield Stretch(near[0].first_seqno - 1, near[-1].last_seqno)


def feed_stretch(log: LogReader, routing: Routing, feeder: Feeder, stretch: Stretch) -> int:
    """Read a stretch once and put its rows; returns how many. Nothing where an older rule ordered its keys: that the
    log's branch tells the job, and a file of ours could not.
    """
    state = log.state()
    if any(
        segment.order_version != KEY_ORDER_VERSION
        for segment in state.segments
        if segment.last_seqno > stretch.after_seqno and segment.first_seqno <= stretch.last_seqno
    ):
        return 0
    partitioner = open_partitioner(routing)
    relations = {relation.relation_id: relation for relation in state.relations}

    def split() -> Iterator[tuple[int, pa.RecordBatch]]:
        for batch in log.rows(stretch.after_seqno, stretch.last_seqno):
            yield from by_channel(partitioner, routing.channels, batch, relations)

    return feeder.feed(stretch, split)


def by_channel(
    partitioner: Partitioner, channels: int, batch: pa.RecordBatch, relations: Mapping[int, Relation]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each channel, in the order in which they came."""
    if not batch.num_rows:
        return iter(())
    return split(batch, partitioner.place(batch, relations).channels, channels)
