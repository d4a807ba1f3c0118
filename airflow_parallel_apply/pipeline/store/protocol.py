"""A store: where a channel's rows wait until the apply stage reads them.

It holds rows or, as the store `log` does, only knows where they are. It decides nothing: serialization points, stops
and restarts are the coordinator's, whatever the store (law 9). The log is always complete, so a store serves the units
of one channel; serial units, merge points and replays read the log.

A store that holds rows has a feeder. What it lacks, or has lost, is answered with the log's branch: that makes it
slower, never wrong. Its rows are a pure function of the log: whoever asks again gets the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

import pyarrow as pa

from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.model.position import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBranch:
    """The place of a unit's rows: Parquet files, and the filters that leave only its rows of them.

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
    ranges: tuple[tuple[int, int], ...] = ()
    """First and last bucket of about even parts of the rows: each row lies in one of them, and a key's rows in the same
    one. None where they are not divided.
    """
    widest_bytes: int | None = None
    """Bytes of the values of the files' widest row; None where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBranch:
    """The place of a unit's rows: a router, and the tickets for which it streams them.

    `address`: of the router, with its token. `tickets`: one, or one for each of about even parts of the rows: no row is
    in two of them, and a key's rows are in the same one. `condition`, `committed` and `unordered` as a `FileBranch` has
    them; `condition` is `ALL_ROWS` where the router has left the channel's rows alone.
    """

    address: str = field(repr=False)
    tickets: tuple[bytes, ...]
    after_seqno: int
    last_seqno: int
    condition: str | None
    committed: str | None = None
    unordered: tuple[int, ...] = ()


ALL_ROWS: Final = "true"
"""The condition where every row between the seqnos is the unit's."""

StoreBranch: TypeAlias = FileBranch | StreamBranch


class Store(Protocol):
    """Finds where the rows of channels can be read. A lane opens one, and shares it with its stage."""

    def branch(self, unit: Unit, *, parts: int = 1) -> StoreBranch:
        """Say where a unit's rows are. Whoever asks again is told of the same rows: a retry, or the next claimant.
        `parts`: into how many they may be divided; a channel's are where it has more than others. Errors: `LogError`
        for what neither it nor the log can read or has.
        """
        ...

    def doubt(self, unit: Unit) -> None:
        """Forget what is held of a unit: what was read of it is not what the plan counts, or could not be read. The log
        serves it from now on, unless it is fed anew. Nothing where the log served it.
        """
        ...

    def close(self) -> None:
        """Let go of what it keeps open. Idempotent."""
        ...


@dataclass(frozen=True, slots=True, order=True)
class Stretch:
    """The seqnos of (after_seqno, last_seqno], all of parallel epochs, whole ones: what is fed at a time."""

    after_seqno: int
    last_seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """The part of a channel that a store holds. Of a store in a router: what waits in memory, the most that ever waited
    in memory and on disk, and how long the channel could take nothing more.
    """

    channel: int
    row_count: int
    file_bytes: int
    file_count: int
    memory_bytes: int = 0
    most_memory_bytes: int = 0
    most_file_bytes: int = 0
    blocked_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatus:
    """The part of a pipeline that a store holds beside the log, of all channels. `held_seqno`: up to where. `place`: of
    the router that holds it; empty where files do. `failure`: why the log serves what the store should.
    """

    name: str
    held_seqno: int
    row_count: int
    file_bytes: int
    file_count: int
    memory_bytes: int = 0
    place: str = ""
    failure: str = ""
    channels: tuple[StoreStats, ...] = ()

    def __str__(self) -> str:
        if self.failure:
            return f"store {self.name}: the log serves its channels, since {self.failure}"
        if self.place:
            return (
                f"store {self.name}: {self.row_count:,} rows up to seqno {self.held_seqno} at {self.place}, "
                f"{self.memory_bytes / 2**20:,.1f} MB in memory, {self.file_bytes / 2**20:,.1f} MB spilled"
            )
        return (
            f"store {self.name}: {self.row_count:,} rows up to seqno {self.held_seqno} in {self.file_count:,} files, "
            f"{self.file_bytes / 2**20:,.1f} MB"
        )


Split: TypeAlias = Callable[[], Iterator[tuple[int, pa.RecordBatch]]]
"""Reads the rows of a stretch from the log, once: channel by channel in batches."""


class Feeder(Protocol):
    """Fills a store. Routing alone calls it (`store.feed`); one instance, one thread. Several may feed at once."""

    def lacks(self, stretch: Stretch) -> tuple[Stretch, ...]:
        """Those parts of a stretch that the store does not hold, in order."""
        ...

    def feed(self, stretch: Stretch, split: Split) -> int:
        """Hold a stretch: every row of every channel. Returns how many rows it took from `split`, which a store that
        has the log read elsewhere does not call. Nobody reads what is not held whole. Memory is bounded, however many
        channels there are. Errors: `LogError`.
        """
        ...

    def abandon(self) -> None:
        """Forget what was begun and is not held."""
        ...

    def trim(self, positions: Sequence[Position]) -> int:
        """Let go of what every one of these positions has passed in its channel, and of nothing else; returns how many
        files went, where it has files. The target has these positions on disk. Errors: `LogError`.
        """
        ...

    def status(self) -> StoreStatus:
        """The rows and bytes that are held, in all and by channel. Errors: `LogError`."""
        ...

    def close(self) -> None:
        """Let go of what it keeps open. Idempotent."""
        ...
