"""`round_robin`: transactions in turn, each as a whole. For tables that only grow: without a key there is no order of
changes to keep, and a key would meet itself in several channels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.event import Relation
from airflow_parallel_apply.pipeline.partition.protocol import UNKNOWN, Placement
from airflow_parallel_apply.pipeline.partition.routing import Routing


class RoundRobin:
    """See `Partitioner`. A table that gets a key while it is followed makes its transactions critical."""

    is_whole: Final = True
    columns: Final = ("seqno", "key")

    def __init__(self, routing: Routing) -> None:
        self._channels = routing.channels

    def refusal(self, relation: Relation) -> str | None:
        if not relation.key_indexes:
            return None
        return "has a key, and round_robin would change one key in several channels: use key or shard"

    def place(self, rows: pa.RecordBatch, relations: Mapping[int, Relation]) -> Placement:
        del relations
        channels = rows.column("seqno").to_numpy() % self._channels
        keyed = pc.is_valid(rows.column("key")).to_numpy(zero_copy_only=False)
        return Placement(np.where(keyed, UNKNOWN, channels), channels)

    def condition(self, channel: int, relations: Collection[Relation]) -> str:
        del relations
        return f"`key` IS NULL AND seqno % {self._channels} = {channel}"
