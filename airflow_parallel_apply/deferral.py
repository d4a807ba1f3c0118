"""Deferral by name: a task that defers names its trigger's path and arguments.

Triggers have their base class in Airflow's core, which runs them and need not be where tasks run. A task that defers
only sends the two on, so it needs no trigger to do so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

_TRIGGERS = "airflow_parallel_apply.triggers"


class _Named:
    """As much of a trigger as a deferral uses."""

    def __init__(self, path: str, arguments: dict[str, Any]) -> None:
        self._path = path
        self._arguments = arguments

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return self._path, self._arguments

    def __repr__(self) -> str:
        return self._path


def trigger(name: str, **arguments: Any) -> BaseTrigger:
    """The trigger `module.Class` below `triggers`; `tests/provider/test_triggers.py` holds callers to what it takes."""
    return cast("BaseTrigger", _Named(f"{_TRIGGERS}.{name}", arguments))
