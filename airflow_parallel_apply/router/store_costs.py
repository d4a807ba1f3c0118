"""Costs of stores: the bytes that each would read and write to apply a log once.

Estimated from the log's manifests: no row is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_parallel_apply.pipeline.config import StoreName
from airflow_parallel_apply.pipeline.log.protocol import Segment
from airflow_parallel_apply.pipeline.model.epoch import Epoch, EpochKind
from airflow_parallel_apply.pipeline.partition.channel import bucket_range
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.store.choice import FEW_READS


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCost:
    """Bytes of the log's files, as they are compressed there. `waiting_bytes`: of rows in the router's memory, or
    spilled, if every channel waited; uncompressed.
    """

    store: StoreName
    read_bytes: int
    written_bytes: int = 0
    waiting_bytes: int = 0


def store_costs(
    segments: Sequence[Segment], epochs: Sequence[Epoch], routing: Routing, after_seqno: int
) -> tuple[StoreCost, ...]:
    """By store. Serial epochs are read from the log with each, and left out. Segments count as far as the seqnos of
    parallel epochs lie in them.
    """
    parallel = [epoch for epoch in epochs if epoch.kind is EpochKind.PARALLEL]
    shares = [(segment, _share(segment, parallel)) for segment in segments if segment.last_seqno > after_seqno]
    once = sum(segment.file_bytes * share for segment, share in shares)
    scanned = sum(_scanned(segment, routing) * share for segment, share in shares)
    values = sum(sum(epoch.bytes_) for epoch in parallel)
    return (
        StoreCost(store=StoreName.LOG, read_bytes=round(scanned)),
        # Read once to feed it, written, and what was written is read.
        StoreCost(store=StoreName.CHANNEL_LOG, read_bytes=round(2 * once), written_bytes=round(once)),
        StoreCost(store=StoreName.MEMORY, read_bytes=round(once), waiting_bytes=values),
    )


def recommended(costs: Sequence[StoreCost]) -> tuple[StoreName, str]:
    """The store for a log, and why in a sentence."""
    by_store = {cost.store: cost for cost in costs}
    once = by_store[StoreName.MEMORY].read_bytes
    times = by_store[StoreName.LOG].read_bytes / once if once else 1.0
    if times <= FEW_READS:
        return StoreName.LOG, f"all channels together read it {times:.1f} times, and nothing is fed or written"
    return (
        StoreName.CHANNEL_LOG,
        f"the channels would read the log {times:.1f} times instead of once; memory, where that is not to be written",
    )


def _share(segment: Segment, epochs: Sequence[Epoch]) -> float:
    """The part of a segment's seqnos that these epochs have."""
    seqnos = sum(
        max(0, min(segment.last_seqno, epoch.last_seqno) - max(segment.first_seqno, epoch.first_seqno) + 1)
        for epoch in epochs
    )
    return seqnos / (segment.last_seqno - segment.first_seqno + 1)


def _scanned(segment: Segment, routing: Routing) -> float:
    """The bytes of a segment that all channels together read; only by key do row groups tell what one can skip."""
    if routing != Routing(channels=routing.channels):
        return float(segment.file_bytes * routing.channels)
    ranges = [bucket_range(channel, routing.channels) for channel in range(routing.channels)]
    rows = sum(
        group.row_count * sum(first <= group.last_bucket and group.first_bucket <= last for first, last in ranges)
        for group in segment.row_groups
    )
    return segment.file_bytes * rows / segment.row_count if segment.row_count else 0.0
