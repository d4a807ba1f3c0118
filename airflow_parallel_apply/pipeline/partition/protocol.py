"""The partitioner's protocol: a pure function from a row of the log to its channel, given in Arrow and in Spark SQL.

Law 1: rows of one key lie in one channel. Law 2 follows from it, since a channel keeps the order of its rows. Both
notations give one answer; a lane compares what Spark counted with what the plan counted, and refuses any difference.

A partitioner is *whole* or it spreads. One that spreads may put the rows of a transaction into several channels. A
whole one puts each transaction into one channel; one that it cannot (rows of two shards, or of none that is known)
is critical: it runs alone, and only then the rest goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_parallel_apply.pipeline.model.change import Relation

Numbers = npt.NDArray[np.int64]

UNKNOWN: Final = -1
"""Instead of a channel: the row has no shard."""

CRITICAL: Final = -2
"""Instead of a channel: the row's shard is one that runs alone."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The places of rows, one line each. `channels`: from 0, or UNKNOWN or CRITICAL. `shards`: for a whole partitioner,
    numbers that are equal where the shards are (hashes may collide: then two shards of one channel count as one).
    """

    channels: Numbers
    shards: Numbers | None = None


class Partitioner(Protocol):
    """One routing's partitioner. Stateless: its answers depend on the routing and on the row alone."""

    @property
    def is_whole(self) -> bool:
        """True if transactions are placed as a whole; only then may a row be UNKNOWN or CRITICAL."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the log's rows that `place` reads."""
        ...

    def refusal(self, relation: Relation) -> str | None:
        """Say why a table cannot be followed with this partitioner, as the rest of a sentence; None if it can."""
        ...

    def place(self, rows: pa.RecordBatch, relations: Mapping[int, Relation]) -> Placement:
        """`rows`: at least `columns` of them, in any order. A row of a statement may be placed anywhere."""
        ...

    def condition(self, channel: int, relations: Collection[Relation]) -> str:
        """Spark SQL over the log's columns: true for the rows of a channel, and for no row that runs alone.
        `relations`: all that the rows may have.
        """
        ...
