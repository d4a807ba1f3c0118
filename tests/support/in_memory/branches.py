"""Branches of a target in memory: parts of a group that are applied, prepared, and committed one after the other.

Between the record of a series and the move of the positions others have their turns: whoever died there has decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from airflow_parallel_apply.pipeline.errors import OwnershipLost
from airflow_parallel_apply.pipeline.model.epoch import StagedTable, Unit
from airflow_parallel_apply.pipeline.target.protocol import Pending
from tests.support.in_memory.rows import Net
from tests.support.in_memory.turns import pause

_names: Final = count()


@dataclass(frozen=True)
class Branch:
    """A transaction that waits for its end: the net changes of one channel by key. `channel`: that of the part, None
    for one of all.
    """

    group: int
    channel: int | None
    token: str
    net: dict[int, Net]


@dataclass(frozen=True)
class Series:
    """The record of what is decided."""

    after_seqno: int
    last_seqno: int
    names: tuple[str, ...]


@dataclass
class Branches:
    """The part of a target's content that concerns them. It outlives sessions, and is in a backup."""

    prepared: dict[str, Branch] = field(default_factory=dict)
    series: Series | None = None

    def copy(self) -> Branches:
        return Branches(dict(self.prepared), self.series)

    @property
    def pending(self) -> Pending:
        decided = None if self.series is None else (self.series.after_seqno + 1, self.series.last_seqno)
        return Pending(branches=len(self.prepared), decided=decided)

    def is_known(self, unit: Unit) -> bool:
        """True if another job of the claim has prepared the part."""
        return any((found.group, found.token) == (unit.group, unit.token) for found in self.prepared.values())

    def prepare(self, unit: Unit, net: dict[int, Net]) -> StagedTable:
        if unit.group is None:
            raise OwnershipLost("no part of a group")
        name = f"b{next(_names)}"
        self.prepared[name] = Branch(unit.group, unit.channel, unit.token, net)
        return StagedTable(
            relation_id=0, staging=name, inserts=0, updates=0, deletes=0, has_unsent=False, is_prepared=True
        )

    def roll_back(self, *, below_group: int | None = None, but: Sequence[str] = ()) -> None:
        """Those of groups below one (None: all), but for some."""
        self.prepared = {
            name: found
            for name, found in self.prepared.items()
            if name in but or (below_group is not None and found.group >= below_group)
        }

    def roll_back_others_of(self, unit: Unit) -> None:
        """Roll back what other claims prepared of a part."""
        self.prepared = {
            name: found
            for name, found in self.prepared.items()
            if (found.group, found.channel) != (unit.group, unit.channel) or found.token == unit.token
        }

    def record(self, unit: Unit, names: Sequence[str]) -> None:
        self.series = Series(unit.after_seqno, unit.last_seqno, tuple(names))


def pause_in_series() -> None:
    """Here whoever commits may die."""
    pause("series")
