"""The items that a source yields to the engine, and that its outputs hand on."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Tagged:
    """Rows, and the seqnos that they lie between. Neither bound goes back from one item of a source to the next.

    What is a sequence number to its caller is only compared here.
    """

    batch: pa.RecordBatch
    first_seqno: int = 0
    last_seqno: int = 0


@dataclass(frozen=True, slots=True)
class Reached:
    """A mark of the source: every row at or below `seqno` has been yielded."""

    seqno: int


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one item that belong to one output. `nbytes`: what they hold in memory, by themselves."""

    tagged: Tagged
    nbytes: int

    @classmethod
    def of(cls, batch: pa.RecordBatch, source: Tagged) -> Piece:
        """Tag rows as the item that they came with."""
        return cls(Tagged(batch, source.first_seqno, source.last_seqno), batch.nbytes)
