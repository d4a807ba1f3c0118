"""Positions: how far each channel is. They are rows of the target, and move in the transactions that apply (law 3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_parallel_apply.pipeline.model.change import NO_SEQNO


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The last seqno that a channel has committed, and who may move it on."""

    channel: int
    seqno: int
    generation: int
    claim: str | None


def low_watermark(positions: Iterable[Position]) -> int:
    """The least committed seqno; everything at or below it is in the target."""
    return min((position.seqno for position in positions), default=NO_SEQNO)


def furthest(positions: Iterable[Position]) -> int:
    """The greatest committed seqno; nothing above it is in the target."""
    return max((position.seqno for position in positions), default=NO_SEQNO)


def all_equal(positions: Iterable[Position]) -> bool:
    """True if every channel stopped at the same seqno: only then may the routing change."""
    return len({position.seqno for position in positions}) <= 1
