"""`round_robin`: transactions in turn, each as a whole. For tables that only grow: without a key there is no order of
changes to keep, and a key would meet itself in several channels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.partition.protocol import UNKNOWN, Placement
from airflow_parallel_apply.pipeline.partition.routing import Routing


class RoundRobin:
    """See `Partitioner`. A table that gets a key while it is followed makes its transactions critical."""

    is_whole: Final = True
    columns: Final = ("seqno", "relation_id")

    def __init__(self, routing: Routing) -> None:
        self._channels = routing.channels

    def refusal(self, relation: Relation) -> str | None:
        if _only_grows(relation):
            return None
        if relation.by_image:
            return "has REPLICA IDENTITY FULL, so that its rows may change, and round_robin keeps no order of changes"
        return "has a key, and round_robin would change one key in several channels: use key or shard"

    def place(self, rows: pa.RecordBatch, relations: Mapping[int, Relation]) -> Placement:
        channels = rows.column("seqno").to_numpy() % self._channels
        growing = [number for number, relation in relations.items() if _only_grows(relation)]
        return Placement(np.where(np.isin(rows.column("relation_id").to_numpy(), growing), channels, UNKNOWN), channels)

    def condition(self, channel: int, relations: Collection[Relation]) -> str:
        growing = ", ".join(str(relation.relation_id) for relation in relations if _only_grows(relation))
        return f"relation_id IN ({growing}) AND seqno % {self._channels} = {channel}" if growing else "false"


def _only_grows(relation: Relation) -> bool:
    return not relation.key_indexes and not relation.by_image
