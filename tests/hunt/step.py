"""A trial as data: parameters and steps, printable, replayable, and still a trial when steps are left out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

_ROWS: Final = ("source", "transaction", "touch", "run")
_DEFINES: Final = re.compile(r"\b(ALTER|CREATE|DROP|TRUNCATE|PREPARED|COMMENT|VACUUM|CLUSTER)\b|\bDO \$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One action.

    do: what the player does with it (`player.py` has a method for each).
    kind: the grammar's name for it, for the coverage table.
    names: what a red run may name because of this step: tables, columns, or words of a cause.
    by_hand: what a person runs at the target when he is told to change it as the source was changed.
    """

    do: str
    sql: tuple[str, ...] = ()
    kind: str = "rows"
    names: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_exotic(self) -> bool:
        """True if a red run may be put down to it."""
        return bool(self.names)

    @property
    def is_of_rows(self) -> bool:
        """True if it writes rows alone, which tell their tables' definitions."""
        return self.do in _ROWS and not _DEFINES.search("; ".join(self.sql))

    @property
    def is_at_target(self) -> bool:
        """True if the target alone is changed by it."""
        return "target" in (self.do, self.options.get("do"))

    def __str__(self) -> str:
        options = " ".join(f"{name}={value}" for name, value in self.options.items())
        return " ".join(part for part in (self.do, options, f"({self.kind})", "; ".join(self.sql)) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A history with the runs in it. `parameters` are the pipeline's, and a few of the world's own."""

    seed: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()

    def having(self, steps: Iterable[Step]) -> Self:
        """The same with other steps."""
        return replace(self, steps=tuple(steps))

    def save(self, path: Path) -> None:
        """As JSON, one step a line."""
        steps = ",\n".join(json.dumps(_short(step), ensure_ascii=False) for step in self.steps)
        head = f'"seed": {json.dumps(self.seed)}, "parameters": {json.dumps(dict(self.parameters))}'
        path.write_text(f'{{{head}, "steps": [\n{steps}\n]}}\n', encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Errors: `OSError`, `ValueError`."""
        found = json.loads(path.read_text(encoding="utf-8"))
        steps = tuple(Step(**{name: _frozen(value) for name, value in step.items()}) for step in found["steps"])
        return cls(seed=found["seed"], parameters=found["parameters"], steps=steps)


def _short(step: Step) -> dict[str, Any]:
    return {name: value for name, value in asdict(step).items() if value and (name, value) != ("kind", "rows")}


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
