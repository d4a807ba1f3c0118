"""Sizes and times of a log's writer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.log.protocol import Segment

_ROW_MEMORY_BYTES: Final = 96
_SMALL_PART_OF_BUFFER: Final = 8
"""A segment of values that compress well may be small as a file and still hold many rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """The defaults suit a log of any size. Errors: `ConfigurationError`."""

    segment_file_bytes: int = 32 * 2**20
    """A segment is closed at about this size of its row file."""
    buffer_bytes: int = 128 * 2**20
    """Or when its rows take about this much memory."""
    small_file_bytes: int = 4 * 2**20
    """Adjacent segments below this size are merged; of larger ones a channel's part is worth a scan. A backlog comes in
    larger ones: lanes would wait while they are written again.
    """
    merged_file_bytes: int = 16 * 2**20
    """As soon as they reach this size together."""
    small_segment_count: int = 16
    """Or when there are more than this many of like size."""
    checkpoint_every: int = 32
    """Manifests from one checkpoint to the next: what opening a log reads at most."""
    superseded_grace: timedelta = timedelta(minutes=10)
    """How long the files of merged segments stay for readers that scan them."""
    orphan_age: timedelta = timedelta(hours=1)
    """When a temporary file belongs to a dead writer. One that slept as long is refused, publishing nothing."""

    def __post_init__(self) -> None:
        for name in (
            "segment_file_bytes",
            "buffer_bytes",
            "small_file_bytes",
            "merged_file_bytes",
            "small_segment_count",
            "checkpoint_every",
        ):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"log writer: {name} must be positive", hint="Leave it at its default.")
        if self.small_file_bytes > self.segment_file_bytes:
            raise ConfigurationError("log writer: small_file_bytes is above segment_file_bytes")

    def is_small(self, segment: Segment) -> bool:
        """True if the segment should be merged with its neighbours when they are small, too."""
        return (
            segment.file_bytes < self.small_file_bytes
            and memory_bytes(segment) < self.buffer_bytes // _SMALL_PART_OF_BUFFER
        )


def memory_bytes(segment: Segment) -> int:
    """The memory that the segment's rows take, about."""
    return rows_memory_bytes(segment.row_count, segment.byte_count)


def rows_memory_bytes(row_count: int, byte_count: int) -> int:
    """The memory that rows with so many bytes of values take, about."""
    return byte_count + _ROW_MEMORY_BYTES * row_count
