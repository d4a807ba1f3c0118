"""Looks at what channel logs hold, and removes it."""

from __future__ import annotations

import shutil
from pathlib import Path

from airflow_parallel_apply.pipeline.config import StoreName
from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.directory import LogDirectory, file_errors
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.store.channel_log.directory import ChannelDirectory, owner_of
from airflow_parallel_apply.pipeline.store.protocol import StoreStats, StoreStatus


def _held_stats(directory: ChannelDirectory, channels: int) -> tuple[StoreStats, ...]:
    """Count what is there, by channel. What another process trims meanwhile is not. Errors: `LogError`."""
    rows, sizes, counts = [0] * channels, [0] * channels, [0] * channels
    for stretch in directory.stretches():
        try:
            held = directory.read(stretch)
        except LogError:
            continue
        for channel, file in held.files.items():
            if directory.path(channel, file).exists():
                rows[channel] += file.row_count
                sizes[channel] += file.file_bytes
                counts[channel] += 1
    return tuple(
        StoreStats(channel=channel, row_count=rows[channel], file_bytes=sizes[channel], file_count=counts[channel])
        for channel in range(channels)
    )


def held_status(directory: ChannelDirectory, channels: int) -> StoreStatus:
    """Count what is there, in all and by channel. Errors: `LogError`."""
    stretches = directory.stretches()
    stats = _held_stats(directory, channels)
    return StoreStatus(
        name=StoreName.CHANNEL_LOG,
        held_seqno=max((stretch.last_seqno for stretch in stretches), default=NO_SEQNO),
        row_count=sum(one.row_count for one in stats),
        file_bytes=sum(one.file_bytes for one in stats),
        file_count=sum(one.file_count for one in stats),
        channels=stats,
    )


def remove_channel_logs(log_root: Path, pipeline: str | None = None) -> int:
    """Remove the channel logs of one pipeline, or of all; returns of how many routings. Errors: `LogError`."""
    folders, removed = LogDirectory(root=log_root).channels, 0
    with file_errors(folders):
        if not folders.exists():
            return 0
        for root in folders.iterdir():
            if pipeline is None or owner_of(root) == pipeline:
                shutil.rmtree(root)
                removed += 1
        if not any(folders.iterdir()):
            folders.rmdir()
    return removed
