"""A target of another kind, as a trial needs it: `HuntedTarget`, and the outcome that it is judged by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tests.hunt.targets.alterations import Alteration
from tests.support.rig import Rig


class HuntedTarget(Protocol):
    """One target, used by one trial after the other."""

    @property
    def url(self) -> str:
        """Its address now; following a hint may change it."""
        ...

    def fresh(self) -> None:
        """Leave nothing of a former trial."""
        ...

    def crash(self) -> None:
        """End it as a power failure does, and start it again."""
        ...

    def keep(self) -> None:
        """Copy all that it holds."""
        ...

    def restore(self) -> None:
        """Put the copy in its place; nothing, if nothing was kept."""
        ...

    def differences(self, rig: Rig) -> list[str]:
        """A line for each way in which it is otherwise than the source's history says, when a run is green."""
        ...

    def run(self, statements: Sequence[str]) -> str:
        """Run what `check`, or a hint, has for it in its own words; says what was done."""
        ...

    def alter(self, rig: Rig, alterations: Sequence[Alteration]) -> str:
        """Change its tables by hand as the source's were; says what was done."""
        ...

    def follow(self, told: str) -> str:
        """Do what a hint asks for that no other target's does; what was done, or nothing."""
        ...

    def begin_anew(self) -> None:
        """Make room for a pipeline that begins anew with a copy."""
        ...

    def close(self) -> None: ...
