"""The report of a removal: what it did and what it left; shown at the end of `drop`, whichever parts were reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_parallel_apply.pipeline.model.finding import Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Something that is still there. `command`: what removes it; SQL at source and target, else of a shell."""

    side: Side
    what: str
    command: str = ""

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {"side": self.side.value, "what": self.what, "command": self.command}


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A removal of one side, or of all. `done`: sentences; nothing in it and nothing left means that all was gone
    already.
    """

    done: tuple[str, ...] = ()
    left: tuple[Leftover, ...] = ()

    def __add__(self, other: Removal) -> Removal:
        return Removal(done=self.done + other.done, left=self.left + other.left)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {"done": list(self.done), "left": [leftover.to_json() for leftover in self.left]}
