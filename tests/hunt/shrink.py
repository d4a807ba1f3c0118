"""A failing trial made small: steps, and statements of steps, are left out as long as the same thing is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import TypeVar

from tests.hunt.step import Step, Trial

_Part = TypeVar("_Part")


def shrink(trial: Trial, is_found: Callable[[Trial], bool], *, seconds: float) -> Trial:
    """The smallest that was seen within the time."""
    until = monotonic() + seconds
    bare = trial.having(step for step in trial.steps if not _is_workload(step))
    small = bare if bare != trial and is_found(bare) else trial
    small = small.having(_smaller(small.steps, lambda some: is_found(trial.having(some)), until))
    for number in range(len(small.steps) - 1, -1, -1):
        small = _with_fewer_statements(small, number, is_found, until)
    return small


def script(trial: Trial) -> str:
    """For people."""
    given = " ".join(f"{name}={value}" for name, value in trial.parameters.items())
    lines = [f"{number:3} {step}" for number, step in enumerate(trial.steps)]
    return "\n".join([f"seed {trial.seed}: {given}", *lines])


def _is_workload(step: Step) -> bool:
    """Rows among the exotic things, which seldom matter."""
    creates = any(statement.startswith(("CREATE", "ALTER")) for statement in step.sql)
    return step.do in ("source", "transaction") and not step.is_exotic and step.kind == "rows" and not creates


def _with_fewer_statements(trial: Trial, number: int, is_found: Callable[[Trial], bool], until: float) -> Trial:
    step = trial.steps[number]

    def having(some: Sequence[str]) -> Trial:
        changed = replace(step, sql=tuple(some))
        return trial.having([*trial.steps[:number], changed, *trial.steps[number + 1 :]])

    return having(_smaller(step.sql, lambda some: is_found(having(some)), until)) if len(step.sql) > 1 else trial


def _smaller(parts: Sequence[_Part], is_found: Callable[[Sequence[_Part]], bool], until: float) -> list[_Part]:
    """Delta debugging by halves, quarters, … single ones, from the end: what comes late seldom matters."""
    found, size = list(parts), max(len(parts) // 2, 1)
    while monotonic() < until:
        place = len(found)
        while place > 0 and monotonic() < until:
            start = max(place - size, 0)
            rest = [*found[:start], *found[place:]]
            if rest and is_found(rest):
                found = rest
            place = start
        if size == 1:
            break
        size = max(size // 2, 1)
    return found
