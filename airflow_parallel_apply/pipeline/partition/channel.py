"""Assigns buckets to channels, in contiguous ranges, so that a segment's statistics prune by channel."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from airflow_parallel_apply.pipeline.model.change import BUCKET_COUNT


def bucket_range(channel: int, channels: int) -> tuple[int, int]:
    """First and last bucket of a channel, both inclusive: those with `bucket * channels // BUCKET_COUNT == channel`."""
    first = -(-channel * BUCKET_COUNT // channels)
    last = -(-(channel + 1) * BUCKET_COUNT // channels) - 1
    return first, last


def channel_of(buckets: npt.NDArray[Any], channels: int) -> npt.NDArray[np.int64]:
    """The channels of an array of buckets."""
    return buckets.astype(np.int64) * channels // BUCKET_COUNT
