"""Ends of a process at a chosen call: as a kill there, but that what is `finally` done is done."""

from __future__ import annotations

from typing import Any


class Died(BaseException):
    """Stands for the end of the process."""


class Bomb:
    """Ends the process at its `fuse`th call."""

    def __init__(self, fuse: int) -> None:
        self.fuse = fuse
        self.places: list[str] = []

    def pass_by(self, place: str) -> None:
        self.places.append(place)
        if len(self.places) == self.fuse:
            raise Died(place)


class Mined:
    """An object whose methods of some names pass by a bomb, before and behind their call."""

    def __init__(self, inner: Any, bomb: Bomb, *names: str) -> None:
        self._inner, self._bomb, self._names = inner, bomb, names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._names:
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self._bomb.pass_by(f"before {name}")
            result = found(*arguments, **named)
            self._bomb.pass_by(f"behind {name}")
            return result

        return call
