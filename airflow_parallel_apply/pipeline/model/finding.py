"""A check's findings: how bad each is, where it is, what it is, and the commands that fix it.

A finding is said once, where the thing is looked at: by the source, the target, ….
`parallel-apply check` shows it; `prepare` and `open` refuse to go on with one that is an error, in the same words.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from airflow_parallel_apply.pipeline.errors import OWN_PIPELINE, ConfigurationError, with_pipeline

_SHOWN_COMMANDS: Final = 3
_LISTED: Final = 10


class Severity(StrEnum):
    """The consequence for a run."""

    ERROR = "error"
    """Nothing starts."""
    WARNING = "warning"
    """Runs go on; something may be refused, slower or other than expected."""


class Side(StrEnum):
    """The side that has the trouble, and that the commands are for."""

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
    fix: tuple[str, ...] = ()
    """Commands, one after the other, each complete."""
    note: str = ""
    """Advice that no command can express: a restart, another choice."""

    def __str__(self) -> str:
        """In one line, with what fixes it."""
        fix = f"To fix it: {'; '.join(self.fix)}." if self.fix else ""
        words = [f"{self.side}: {sentence(self.what)}", fix, self.note]
        return " ".join(word for word in words if word)

    def named(self, pipeline: str) -> Finding:
        """The same with commands that name the pipeline."""
        fix = tuple(with_pipeline(command, pipeline) for command in self.fix)
        return replace(self, fix=fix, note=with_pipeline(self.note, pipeline))

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "severity": self.severity.value,
            "side": self.side.value,
            "where": self.where,
            "column": self.column,
            "what": self.what,
            "fix": list(self.fix),
            "note": self.note,
        }


def new_finding(
    side: Side, where: str, what: str, *fix: str, severity: Severity = Severity.ERROR, note: str = ""
) -> Finding:
    """One that is not about a table."""
    return Finding(severity=severity, side=side, where=where, what=what, fix=fix, note=note)


def general_findings(
    side: Side, product: str, major: int, *, is_standby: bool, oldest: int, newest: int
) -> Iterator[Finding]:
    """Find what is wrong with any server. `major`: its major version; the product was tested up to `newest`."""
    if major < oldest:
        yield new_finding(side, "version", f"the server is version {major}", note=f"Use {product} {oldest} or later.")
    elif major > newest:
        yield new_finding(
            side,
            "version",
            f"the server is version {major}, which this release was never tested with",
            severity=Severity.WARNING,
            note="Look for a newer release.",
        )
    if is_standby:
        yield new_finding(side, "server", "the server is a standby", note="Connect to the primary.")


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that nothing starts with."""
    return tuple(finding for finding in findings if finding.severity is Severity.ERROR)


def warnings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that a run goes on with, and should be told of."""
    return tuple(finding for finding in findings if finding.severity is Severity.WARNING)


def refuse(findings: Iterable[Finding], *, place: str, op: str, pipeline: str | None = None) -> tuple[Finding, ...]:
    """Go on with the warnings. Errors: `ConfigurationError` that says all that are errors, at `place`."""
    found = tuple(findings)
    refused = errors(found)
    if refused:
        raise ConfigurationError(
            f"{place}: {'; '.join(finding.what for finding in refused)}",
            op=op,
            pipeline=pipeline,
            hint=hint_of(refused),
        )
    return warnings(found)


def hint_of(findings: Sequence[Finding]) -> str:
    """One line that says how to fix them: the first ones by all their commands, each once, of more only that there are
    more.
    """
    commands: dict[str, None] = {}
    for finding in findings:
        if len(commands) < _SHOWN_COMMANDS:
            commands |= dict.fromkeys(finding.fix)
    words = [f"Run {'; '.join(commands)}."] if commands else []
    if len(commands) < len({command for finding in findings for command in finding.fix}):
        words.append("`parallel-apply check` shows all commands.")
    words += dict.fromkeys(finding.note for finding in findings if finding.note)
    return " ".join(words)


def command_line(command: str, tables: Iterable[str], pipeline: str | None = None) -> str:
    """A command of `parallel-apply` that takes tables, as a shell reads it, whatever is in their names. `pipeline`:
    None where the error that has it as a hint is to fill it in.
    """
    own = OWN_PIPELINE if pipeline is None else f"--pipeline {shlex.quote(pipeline)}"
    return f"parallel-apply {command} {own} {table_options(tables)}"


def table_options(names: Iterable[str]) -> str:
    """The options by which a command of `parallel-apply` is told its tables."""
    return " ".join(f"--table {shlex.quote(name)}" for name in names)


def sentence(text: str) -> str:
    """With an end: what a server said may bring its own."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def listed(names: Sequence[str]) -> str:
    """Some of them, for a sentence."""
    shown = ", ".join(names[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"
