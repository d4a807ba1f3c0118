"""Colocated tables over any partitioner: a group of tables lies in one channel as a whole.

A target that checks foreign keys while it applies needs a parent's row before its child's, and only inside one channel
rows keep their order. A group's channel is that of its first table's one bucket. To a whole
partitioner a group is a shard of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pyarrow as pa

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.partition.channel import channel_of
from airflow_parallel_apply.pipeline.partition.key import table_bucket
from airflow_parallel_apply.pipeline.partition.protocol import Partitioner, Placement
from airflow_parallel_apply.pipeline.partition.routing import Routing


class Colocated:
    """See `Partitioner`; `other` places all other tables."""

    def __init__(self, routing: Routing, other: Partitioner) -> None:
        self._other = other
        self._channel: dict[str, int] = {}
        self._group: dict[str, int] = {}
        for number, tables in enumerate(routing.colocation):
            bucket = table_bucket(tables[0])
            for table in tables:
                self._channel[table] = int(channel_of(np.array([bucket]), routing.channels)[0])
                self._group[table] = number

    @property
    def is_whole(self) -> bool:
        return self._other.is_whole

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(("relation_id", *self._other.columns)))

    def refusal(self, relation: Relation) -> str | None:
        return None if relation.name in self._channel else self._other.refusal(relation)

    def place(self, rows: pa.RecordBatch, relations: Mapping[int, Relation]) -> Placement:
        placed = self._other.place(rows, relations)
        channels = placed.channels.copy()
        shards = None if placed.shards is None else placed.shards.copy()
        ids = rows.column("relation_id").to_numpy()
        for relation_id in np.unique(ids).tolist():
            name = relations[relation_id].name if relation_id in relations else ""
            if name in self._channel:
                channels[ids == relation_id] = self._channel[name]
                if shards is not None:
                    shards[ids == relation_id] = self._group[name]
        return Placement(channels, shards)

    def condition(self, channel: int, relations: Collection[Relation]) -> str:
        inner = self._other.condition(channel, relations)
        colocated = [relation for relation in relations if relation.name in self._channel]
        if not colocated:
            return inner
        elsewhere = f"relation_id NOT IN ({_ids(colocated)}) AND ({inner})"
        mine = [relation for relation in colocated if self._channel[relation.name] == channel]
        return f"relation_id IN ({_ids(mine)}) OR ({elsewhere})" if mine else elsewhere


def _ids(relations: Collection[Relation]) -> str:
    return ", ".join(str(relation.relation_id) for relation in relations)
