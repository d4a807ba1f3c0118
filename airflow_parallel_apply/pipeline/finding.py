"""What a check finds: how bad it is, where, what, and the commands that mend it.

A finding is said once, where the thing is looked at (`source/postgres/check.py`, `target/postgres/check.py`, …).
`parallel-apply check` shows it; `prepare` and `open` refuse to go on with one that is an error, in the same words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from psycopg import sql

_SHOWN_COMMANDS: Final = 3


class Severity(StrEnum):
    """What a run does about it."""

    ERROR = "error"
    """Nothing starts."""
    WARNING = "warning"
    """Runs go on; something may be refused, slower or other than expected."""


class Side(StrEnum):
    """Whose trouble it is, and so what its commands are for."""

    SOURCE = "source"
    TARGET = "target"
    """Commands for these two are SQL for that database."""
    LOG = "log"
    SPARK = "spark"
    QUEUE = "queue"
    """For these, commands of a shell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing. `where`: what it is about, a setting, a role, a file, or a table. `what`: a whole sentence."""

    severity: Severity
    side: Side
    where: str
    what: str
    is_table: bool = False
    column: str | None = None
    mend: tuple[str, ...] = ()
    """Commands, one after the other, each complete."""
    note: str = ""
    """What a command cannot do or say: a restart, another choice."""

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "severity": self.severity.value,
            "side": self.side.value,
            "where": self.where,
            "column": self.column,
            "what": self.what,
            "mend": list(self.mend),
            "note": self.note,
        }


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that nothing starts with."""
    return tuple(finding for finding in findings if finding.severity is Severity.ERROR)


def hint_of(findings: Sequence[Finding]) -> str:
    """One line that says how to mend them: the first commands whole, of more only that there are more."""
    commands = [command for finding in findings for command in finding.mend]
    words = [f"Run {'; '.join(commands[:_SHOWN_COMMANDS])}."] if commands else []
    if len(commands) > _SHOWN_COMMANDS:
        words.append("`parallel-apply check` shows all commands.")
    words += dict.fromkeys(finding.note for finding in findings if finding.note)
    return " ".join(words)


def quoted(*names: str) -> str:
    """An identifier for SQL that a person pastes, whatever is in its name."""
    return sql.Identifier(*names).as_string()
