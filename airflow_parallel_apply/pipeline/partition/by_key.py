"""`key`: the hash of a row's key, by contiguous ranges of the log's buckets. Rows without a key are spread evenly."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.partition.channel import bucket_range, channel_of
from airflow_parallel_apply.pipeline.partition.protocol import Placement
from airflow_parallel_apply.pipeline.partition.routing import Routing


class ByKey:
    """See `Partitioner`. The only one whose rows lie side by side in the log's files: a channel reads its own."""

    is_whole: Final = False
    columns: Final = ("bucket",)

    def __init__(self, routing: Routing) -> None:
        self._channels = routing.channels

    def refusal(self, relation: Relation) -> str | None:
        del relation
        return None

    def place(self, rows: pa.RecordBatch, relations: Mapping[int, Relation]) -> Placement:
        del relations
        return Placement(channel_of(rows.column("bucket").to_numpy(), self._channels))

    def condition(self, channel: int, relations: Collection[Relation]) -> str:
        del relations
        first, last = bucket_range(channel, self._channels)
        return f"bucket >= {first} AND bucket <= {last}"
