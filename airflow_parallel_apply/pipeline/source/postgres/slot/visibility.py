"""Commits that a slot sends before anybody sees them: `Visibility`.

A transaction is in the WAL, and thus in the slot, before the catalog shows what it did: for a moment, or until its
synchronous standby confirms it. A look at the catalog during that time proves nothing about its definitions.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.pipeline.source.postgres.slot.transactions import XID_AT
from airflow_parallel_apply.pipeline.source.postgres.wire.cells import Wire

_BEGIN, _RELATION, _MESSAGE = (ord(letter) for letter in "BRM")
_XIDS: Final = 2**32
_OURS: Final = re.compile(rb"M\x01.{8}parallel_apply\.", re.DOTALL)
"""How a transactional message of ours begins: kind, flag, LSN and prefix."""


class Visibility:
    """The transactions that were over at a look, and those of a read of the slot behind it. Not thread-safe."""

    def __init__(self, snapshot: str, *, is_confirmed: bool, time: datetime) -> None:
        _, end, open_ones = snapshot.split(":")
        self._end = int(end) % _XIDS
        self._open = frozenset(int(xid) % _XIDS for xid in open_ones.split(",") if xid)
        self._xid = 0
        self.is_confirmed = is_confirmed
        """True if no commit waits for a standby: then all that is in the WAL is seen at once."""
        self.time = time
        """By the source's clock."""

    @classmethod
    def now(cls, connection: psycopg.Connection[tuple[str, bool, datetime]]) -> Visibility:
        """Those that are over now. Errors: psycopg's own."""
        found = connection.execute(
            "SELECT pg_catalog.pg_current_snapshot()::text, current_setting('synchronous_standby_names') = '', "
            "clock_timestamp()"
        ).fetchone()
        if found is None:
            raise Unavailable("the source did not tell its transactions", op="capture")
        return cls(found[0], is_confirmed=found[1], time=found[2])

    def require(self, messages: pa.BinaryArray) -> None:
        """Require of the next messages of a read that the look has seen what they describe, or tell of. Errors:
        `Unavailable`.
        """
        wire = Wire(messages)
        kinds = wire.data[wire.starts]
        begins = np.flatnonzero(kinds == _BEGIN)
        xids = np.concatenate([[self._xid], wire.numbers(wire.starts[begins] + XID_AT, ">u4")])
        for place in np.unique(np.searchsorted(begins, self._telling(wire, kinds))).tolist():
            if not self._has_seen(int(xids[place])):
                raise Unavailable(
                    f"transaction {xids[place]} of the source is in its WAL, and nobody sees it yet: it waits for a "
                    "synchronous standby, perhaps",
                    op="capture",
                    hint="It is tried again. SELECT * FROM pg_stat_activity WHERE wait_event = 'SyncRep' at the source "
                    "shows who waits.",
                )
        self._xid = int(xids[-1])

    def _telling(self, wire: Wire, kinds: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """Where the messages are that the catalog is asked about, or that count by what it shows."""
        found = np.flatnonzero(kinds == _MESSAGE).tolist()
        messages = [index for index in found if _OURS.match(wire.message(index))]
        return np.sort(np.concatenate([np.flatnonzero(kinds == _RELATION), np.array(messages, dtype=np.int64)]))

    def _has_seen(self, xid: int) -> bool:
        return (xid - self._end) % _XIDS >= _XIDS // 2 and xid not in self._open
