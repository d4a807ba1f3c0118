"""Reads that prove that they continue from what the log has: `ResumedRead`.

The slot is left in front of the last commit that the log has, so that each read begins with that transaction::

    WAL    ──── … ──── last transaction ─┬─ COMMIT ──── next one ──── COMMIT ───▶
                                         └ the slot stands here
    read                 the log has it: compared, then dropped  │  new

A server that was restored from an older copy, or replaced by a standby that was behind, has something else there, or
nothing, however far its WAL has grown since. Its system identifier and timeline need not show this.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import START_ANEW, SourceError, Unavailable
from airflow_parallel_apply.pipeline.log.protocol import ResumePoint
from airflow_parallel_apply.pipeline.source.postgres.lsn import lsn_text
from airflow_parallel_apply.pipeline.source.postgres.wire.cells import Wire

POSTGRES_EPOCH_MICROSECONDS: Final = 946_684_800_000_000
_BEGIN: Final = struct.Struct(">cqqI")
_BEGINS: Final = ord("B")
_COMMIT: Final = ord("C")
_XID_AT: Final = 17
_DESCRIPTIONS: Final = (ord("R"), ord("Y"))

Keep = Callable[[bytes], None]
Batches = Generator[pa.BinaryArray, None, None]


class ResumedRead:
    """One read of a slot that stands at `point`. `peek` reads about as many messages as it is told, whole transactions.

    `keep` is given each description of a table or type that came with the dropped transaction: the server does not send
    it again.
    """

    def __init__(self, peek: Callable[[int], Batches], point: ResumePoint | None, *, place: str, keep: Keep) -> None:
        self._peek = peek
        self._point = point
        self._place = place
        self._keep = keep
        self.is_complete = False
        """True if the last read came to its end by itself, not by the number of its messages."""

    def messages(self, max_changes: int) -> Batches:
        """Read what the log does not have. Errors: `SourceError` if the source lacks what the log has, before anything
        is yielded.
        """
        known = 0 if self._point is None else self._point.message_count
        while True:
            asked = max_changes + known
            seen, has_commit = 0, False
            with closing(self._peek(asked)) as batches:
                for batch, first_new in self._checked(batches):
                    seen += len(batch)
                    if first_new < len(batch):
                        new = batch.slice(first_new)
                        has_commit = has_commit or len(commit_ends(new)) > 0
                        yield new
            self.is_complete = seen < asked
            # The next read begins with the last commit of this one. So one is needed: more of the dropped transaction,
            # with descriptions that did not count, or more messages outside any transaction, may come before it.
            if self.is_complete or has_commit:
                return
            known = 2 * seen

    def _checked(self, batches: Iterable[pa.BinaryArray]) -> Iterator[tuple[pa.BinaryArray, int]]:
        """Each batch, and how many of its first messages the log has."""
        if self._point is None or self._point.xid is None:
            yield from ((batch, 0) for batch in batches)
            return
        is_first, is_inside = True, True
        for batch in batches:
            if is_first:
                require_same(self._point, batch[0].as_py(), place=self._place)
                is_first = False
            if not is_inside:
                yield batch, 0
                continue
            wire, ends = Wire(batch), commit_ends(batch)
            first_new = int(ends[0]) if len(ends) else len(batch)
            is_inside = not len(ends)
            kinds = wire.data[wire.starts[:first_new]]
            for index in np.flatnonzero(np.isin(kinds, _DESCRIPTIONS)).tolist():
                self._keep(wire.message(index))
            yield batch, first_new
        if is_first:
            raise went_back(self._point, "has nothing there", place=self._place)


class LastCommit:
    """Finds where the next read has to begin, after the messages that it is fed."""

    def __init__(self) -> None:
        self.point: ResumePoint | None = None
        self._xid = 0
        self._message_count = 0

    def feed(self, messages: pa.BinaryArray) -> None:
        """The next messages of the read."""
        wire = Wire(messages)
        kinds = wire.data[wire.starts]
        begins, ends = np.flatnonzero(kinds == _BEGINS), np.flatnonzero(kinds == _COMMIT) + 1
        last_end = int(ends[-1]) if len(ends) else 0
        if last_end:
            at = wire.starts[last_end - 1 : last_end]
            inside = begins[begins < last_end]
            self.point = ResumePoint(
                offset=int(wire.numbers(at + 2, ">i8")[0]),
                xid=self._xid_at(wire, inside[-1]) if len(inside) else self._xid,
                commit_time=int(wire.numbers(at + 18, ">i8")[0]) + POSTGRES_EPOCH_MICROSECONDS,
                message_count=last_end - int(inside[-1]) if len(inside) else self._message_count + last_end,
            )
            self._message_count = 0
        self._message_count += len(messages) - last_end
        if len(begins) and begins[-1] >= last_end:
            self._xid = self._xid_at(wire, begins[-1])
            self._message_count = len(messages) - int(begins[-1])

    def _xid_at(self, wire: Wire, begin: np.int64) -> int:
        return int(wire.numbers(wire.starts[begin : begin + 1] + _XID_AT, ">u4")[0])


def commit_ends(messages: pa.BinaryArray) -> npt.NDArray[np.int64]:
    """The numbers of the messages that follow a transaction's end."""
    wire = Wire(messages)
    return np.flatnonzero(wire.data[wire.starts] == _COMMIT) + 1


def require_same(point: ResumePoint, first_message: bytes | None, *, place: str) -> None:
    """That a read from the point begins with the point's own transaction. Errors: `SourceError`."""
    if point.xid is None:
        return
    if not first_message:
        raise went_back(point, "has nothing there", place=place)
    if len(first_message) == _BEGIN.size:
        kind, lsn, time, xid = _BEGIN.unpack(first_message)
        if kind == b"B" and (lsn, time + POSTGRES_EPOCH_MICROSECONDS, xid) == (
            point.offset,
            point.commit_time,
            point.xid,
        ):
            return
    raise went_back(point, "has another one there", place=place)


def went_back(point: ResumePoint, what: str, *, place: str) -> SourceError:
    """The source lacks what the log has."""
    return SourceError(
        f"the source {place} was restored from an older copy, or replaced by a server that is behind: the last "
        f"transaction that the log has of it committed at {lsn_text(point.offset)}, and the source {what}",
        op="capture",
        hint=f"What it lost is in the log and the target. Is this the right server? {START_ANEW}",
    )


def behind(flushed_lsn: int, wanted: str, *, op: str) -> Unavailable:
    """The source has what the log has, and may still come to what is `wanted` of it."""
    return Unavailable(
        f"the source's WAL ends at {lsn_text(flushed_lsn)}, and {wanted}: the source was restored, or replaced by a "
        "server that was behind. It still has the last transaction that the log has of it",
        op=op,
        hint="It is tried again, and continues once the WAL is past that: SELECT pg_switch_wal() at the source helps "
        "an idle one.",
    )
