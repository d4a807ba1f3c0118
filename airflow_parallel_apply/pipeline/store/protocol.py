"""A store: where a channel's rows wait until the apply stage reads them.

It holds rows or, as the store `log` does, only knows where they are. It decides nothing: serialization points, stops
and restarts are the coordinator's, whatever the store (law 9). The log is always complete, so a store serves the units
of one channel; serial units, merge points and replays read the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from airflow_parallel_apply.pipeline.model.epoch import Unit


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


class Store(Protocol):
    """Finds where the rows of channels can be read. The process that stages asks it."""

    def branch(self, unit: Unit, *, parts: int = 1) -> FileBranch:
        """Say where a unit's rows are. Whoever asks again is told of the same rows: a retry, or the next claimant.
        `parts`: into how many they may be divided; a channel's are where it has more than others. Errors: `LogError`
        for what it cannot read or does not have.
        """
        ...
