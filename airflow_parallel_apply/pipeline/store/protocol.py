"""A store: where a channel's events wait between the router, which puts epochs, and the lanes, which read branches.

It holds rows or, as the store `log` does, only knows where they are. It decides nothing: serialization points, stops
and restarts are the coordinator's, whatever the store (law 9).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from airflow_parallel_apply.pipeline.model.epoch import Epoch, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Where a unit's rows are: Parquet files, and the filters that leave only its rows of them.

    `condition`: Spark SQL over the log's columns; None where the unit takes every channel's rows. `committed`, of a
    merge point: the seqno that the row's channel has committed before, in Spark SQL too. `unordered`: relations whose
    `key_order` does not bring rows of one key together, see `KEY_ORDER_VERSION`; their keys' texts do.
    """

    files: tuple[str, ...]
    after_seqno: int
    last_seqno: int
    condition: str | None
    committed: str | None = None
    unordered: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """What a store holds for all channels together: zero for one that holds no rows itself."""

    kept_seqno: int
    """Rows above it can be read."""
    held_rows: int
    held_bytes: int


class Store(Protocol):
    """Errors: `LogError` for what it cannot read or does not have."""

    def put(self, epoch: Epoch) -> None:
        """Make the epoch's branches readable, whole; idempotent. Epochs come in order."""
        ...

    def branch(self, unit: Unit) -> Branch:
        """Where the rows of a unit are. They were put before, and stay until acknowledged."""
        ...

    def acknowledge(self, channel: int, seqno: int) -> None:
        """A channel has committed everything up to a seqno: it will not be read again."""
        ...

    def stats(self) -> StoreStats:
        """Holds up nobody."""
        ...

    def close(self) -> None: ...
