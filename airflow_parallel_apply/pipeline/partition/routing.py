"""Routing: everything that decides the channel of a row, as a value that its target keeps.

It is written when a pipeline is first prepared or, with all positions equal, changed; planners and lanes read it back
from there, so that no two of them can come to differ by a file or a parameter of their host.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

from airflow_parallel_apply.pipeline.partition.shard_list import ShardList

KEY: Final = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Channel count, partitioner and all that it goes by.

    `shard_by`: pairs of a pattern over `schema.table` and an expression; a table has the first one that matches.
    `colocation`: groups of tables (`schema.table`), each of which lies in one channel, whatever the partitioner.
    `release`: of a partitioner that was installed beside this package, name and version of its distribution.
    """

    channels: int
    partitioner: str = KEY
    shard_by: tuple[tuple[str, str], ...] = ()
    shards: ShardList | None = None
    colocation: tuple[tuple[str, ...], ...] = ()
    release: str = ""

    @property
    def digest(self) -> str:
        """Changes whenever a row may change its channel (law 1). The log's buckets do not depend on it."""
        if self == Routing(channels=self.channels):
            routing: dict[str, Any] = {"version": 1, "channels": self.channels, "partitioner": KEY}
        else:
            routing = {"version": 2, **self.to_json()}
        return hashlib.sha256(json.dumps(routing, sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """The form that the ledger keeps, and that the digest is made of; so its words never change."""
        return {
            "channels": self.channels,
            "partitioner": self.partitioner,
            "shard_by": [list(pair) for pair in self.shard_by],
            "shards": None if self.shards is None else self.shards.to_json(),
            "ties": [list(tables) for tables in self.colocation],
            "release": self.release,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Routing:
        """Inverse of `to_json`."""
        return cls(
            channels=value["channels"],
            partitioner=value["partitioner"],
            shard_by=tuple((pattern, expression) for pattern, expression in value["shard_by"]),
            shards=None if value["shards"] is None else ShardList.from_json(value["shards"]),
            colocation=tuple(tuple(tables) for tables in value["ties"]),
            release=value["release"],
        )
