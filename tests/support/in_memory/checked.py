"""Targets and stages of actors in memory, which are held to laws at each call that something hangs on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from airflow_parallel_apply.pipeline.model.epoch import StagedUnit, Unit
from airflow_parallel_apply.pipeline.target.steps import Step
from tests.support.in_memory.history import History
from tests.support.in_memory.laws import Begun
from tests.support.in_memory.stepped import Claims
from tests.support.in_memory.target import MemoryTarget
from tests.support.in_memory.turns import pause


class Checked:
    """A target after each of whose commits the laws are looked at."""

    def __init__(self, inner: MemoryTarget, check_commit: Callable[[Unit, Begun], None], claims: Claims | None) -> None:
        self._inner = inner
        self._check_commit = check_commit
        self._claims = claims

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, unit: Unit, steps: Sequence[Step]) -> None:
        self._inner.commit(unit, steps)
        assert self._claims is not None
        assert self._claims.last is not None
        self._check_commit(unit, self._claims.last)


class TakenWhenProved:
    """A target whose channels are taken from their owners under a claim that was proved in the same moment (law 3)."""

    def __init__(self, inner: Any, claims: Claims | None) -> None:
        self._inner = inner
        self._claims = claims

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def take(self, *arguments: Any, **named: Any) -> Any:
        assert self._claims is not None
        assert self._claims.is_proved_now, "a channel is taken under a claim that may be another's by now (law 3)"
        return self._inner.take(*arguments, **named)


class MemoryStage:
    """Staging by the target itself."""

    def __init__(self, target: Any, history: History) -> None:
        self._target = target
        self._history = history

    def stage(self, unit: Unit) -> StagedUnit:
        pause("stage")
        staged: StagedUnit = self._target.stage(unit, self._history.rows)
        pause("behind stage")
        return staged

    def cancel(self) -> None:
        """Stages run in one piece."""

    def close(self) -> None:
        """Holds nothing."""
