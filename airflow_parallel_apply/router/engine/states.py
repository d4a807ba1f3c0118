"""Two state machines: what a consumer still wants of its output, and where the engine is.

::

    Demand of an output                    Phase of the engine

    NEEDS_MORE ──drain──▶ DRAINING         NEW ──run──▶ RUNNING ◀──one can take rows── STOPPED
        │                    │                             │  └────all are blocked────▶  │
        └──────close─────────┴──▶ CLOSED                   │                             │
                                              the source   │    nobody needs more        │
                                              has ended    ├──────────▶ DRAINED ◀────────┤
                                                  ┌────────┤                             │
                                                  ▼        ├──────────▶ FAILED           │ the source, the disk
                                                ENDED      │                             │
                                                  │        └────▶ CANCELLED ◀────────────┘
                                                  └──rows are let go of──▶ ▲       (and from NEW)

A draining consumer wants no more rows, only to learn how it ends; one that closed wants nothing. Rows for either are
dropped and counted. `ENDED` is graceful: what waits in the outputs can still be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar


class Demand(StrEnum):
    """The demand of an output's consumer."""

    NEEDS_MORE = "needs more"
    DRAINING = "draining"
    CLOSED = "closed"


class Phase(StrEnum):
    """Where an engine is. It has one life."""

    NEW = "new"
    RUNNING = "running"
    STOPPED = "stopped"
    ENDED = "ended"
    DRAINED = "drained"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_live(self) -> bool:
        """True if rows may still come."""
        return self in (Phase.NEW, Phase.RUNNING, Phase.STOPPED)


DEMANDS: Final[Mapping[Demand, frozenset[Demand]]] = {
    Demand.NEEDS_MORE: frozenset({Demand.DRAINING, Demand.CLOSED}),
    Demand.DRAINING: frozenset({Demand.CLOSED}),
    Demand.CLOSED: frozenset(),
}

PHASES: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.NEW: frozenset({Phase.RUNNING, Phase.CANCELLED}),
    Phase.RUNNING: frozenset({Phase.STOPPED, Phase.ENDED, Phase.DRAINED, Phase.FAILED, Phase.CANCELLED}),
    Phase.STOPPED: frozenset({Phase.RUNNING, Phase.DRAINED, Phase.FAILED, Phase.CANCELLED}),
    Phase.ENDED: frozenset({Phase.CANCELLED}),
    Phase.DRAINED: frozenset(),
    Phase.FAILED: frozenset(),
    Phase.CANCELLED: frozenset(),
}

_State = TypeVar("_State", Demand, Phase)


def moved(state: _State, to: _State, table: Mapping[_State, frozenset[_State]]) -> _State:
    """The next state. Errors: `ValueError` for a transition that the table does not have."""
    if to not in table[state]:
        raise ValueError(f"{type(state).__name__}: {state} does not lead to {to}")
    return to
