"""Actors that take turns: each is a stack of calls that stops before and behind whatever others could see of it.

Nothing runs but the actor whose turn it is, so a test decides every interleaving, and finds it again. An actor that is
killed does nothing any more, not even what its `finally` says: as after `kill -9`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from greenlet import getcurrent, greenlet


class Killed(BaseException):
    """Raised in an actor that does not exist any more."""


class Actor:
    """A call that others interrupt wherever it uses what is `stepped`. `result` and `error` are those of its end."""

    def __init__(self, name: str, call: Callable[[], Any]) -> None:
        self.name = name
        self.result: Any = None
        self.error: Exception | None = None
        self.place = "start"
        self.is_dead = False
        self._call = call
        self._stack = greenlet(self._run)

    @property
    def is_running(self) -> bool:
        return not self.is_dead and not self._stack.dead

    def turn(self) -> None:
        """Go on up to the next place where it stops."""
        if self.is_running:
            self._stack.switch()

    def kill(self) -> None:
        """It stops where it is, for good."""
        self.is_dead = True

    def pause(self, place: str) -> None:
        """Let others have their turns. Called by what the actor runs."""
        self.place = place
        if self.is_dead:
            raise Killed
        self._stack.parent.switch()
        if self.is_dead:
            raise Killed

    def _run(self) -> None:
        current[self._stack] = self
        try:
            self.result = self._call()
        except Killed:
            pass
        except Exception as error:  # noqa: BLE001 - it is the test's to judge
            self.error = error
        finally:
            del current[self._stack]


current: dict[greenlet, Actor] = {}


def pause(place: str) -> None:
    """Let others have their turns, where an actor calls this; a no-op elsewhere."""
    actor = current.get(getcurrent())
    if actor is not None:
        actor.pause(place)


class Stepped:
    """An object each of whose methods `before` names stops its actor before the call, and behind one of `behind`."""

    def __init__(self, inner: Any, *, before: Collection[str], behind: Collection[str]) -> None:
        self._inner = inner
        self._before = frozenset(before)
        self._behind = frozenset(behind)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._before and name not in self._behind:
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            pause(name)
            result = found(*arguments, **named)
            if name in self._behind:
                pause(f"behind {name}")
            return result

        return call
