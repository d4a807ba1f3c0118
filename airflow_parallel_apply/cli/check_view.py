"""Findings for a terminal: a table of what was found, below it the commands, one block for each side.

What a command cannot say (who may run it, a restart, another choice) is a comment above it, so that a block can be
pasted whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from airflow_parallel_apply.pipeline.check.check import Checked
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side, sentence

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow"}
_HEADINGS = {
    Side.SOURCE: "-- fix at the source, with psql:",
    Side.TARGET: "-- fix at the target, with psql:",
    Side.LOG: "# fix the log, in a shell:",
    Side.SPARK: "# fix Spark's workers, in a shell there:",
    Side.QUEUE: "# fix the queue, in a shell:",
}


def check_view(checked: Checked) -> RenderableType:
    """Everything about them."""
    count = {severity: sum(finding.severity is severity for finding in checked.findings) for severity in Severity}
    counted = [
        _counted(len(checked.tables), "table"),
        *(_counted(count[severity], severity) for severity in (Severity.ERROR, Severity.WARNING)),
    ]
    title = f"pipeline {checked.pipeline}: {', '.join(counted)}"
    if not checked.findings:
        return Text(f"{title}; a run may start")
    table = Table(title=title, title_justify="left", box=None)
    for name in ("", "side", "where", "what"):
        table.add_column(name, overflow="fold")
    for finding in checked.findings:
        where = finding.where if finding.column is None else f"{finding.where} {finding.column}"
        what = f"{sentence(finding.what)} {finding.note}" if finding.note and not finding.fix else finding.what
        # As text: brackets in it are no markup.
        table.add_row(Text(finding.severity, style=_STYLES[finding.severity]), finding.side, Text(where), Text(what))
    return Group(table, *(Text(block, no_wrap=True, overflow="ignore") for block in _commands(checked.findings)))


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _commands(findings: tuple[Finding, ...]) -> list[str]:
    """Whole lines, so that they can be copied; each command once, since one may fix several things."""
    blocks = []
    for side in Side:
        commands: dict[str, str] = {}
        for finding in findings:
            if finding.side is side:
                commands |= {command: finding.note for command in finding.fix if command not in commands}
        if commands:
            blocks.append("\n".join(["", _HEADINGS[side], *_lines(side, commands)]))
    return blocks


def _lines(side: Side, commands: Mapping[str, str]) -> Iterator[str]:
    """`commands`: each with its note; of several with one note it stands above the first."""
    comment, end = ("--", ";") if side in (Side.SOURCE, Side.TARGET) else ("#", "")
    said = ""
    for command, note in commands.items():
        if note != said:
            yield ""
            if note:
                yield f"{comment} {note}"
            said = note
        yield f"{command}{end}"
