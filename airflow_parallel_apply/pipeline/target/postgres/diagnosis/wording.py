"""Words a server's message without the values that it carries: which table, column, constraint, key.

PostgreSQL quotes rows in details ("Failing row contains (...)", "Key (a)=(1) already exists"), in some messages
("invalid input syntax for type integer: ...") and in contexts (the line that COPY read). Errors travel into task logs,
XCom and the queue, which more people read than the tables.
"""

from __future__ import annotations

import re
from typing import Final

import psycopg

from airflow_parallel_apply.postgres import sqlstate

_KEY_VALUES: Final = re.compile(
    r"^(?P<key>Key \(.*?\))=\(.*\)(?P<verb> (?:already exists|is not present in|is still referenced from)[^()=]*)?",
    re.DOTALL,
)
_PARTITION_KEY: Final = re.compile(r"^Partition key of the failing row contains (\(.*?\)) = ", re.DOTALL)
_QUOTED: Final = re.compile(r'"[^"]*"')
_LAST_QUOTED: Final = re.compile(r': ".*"$', re.DOTALL)
_HIDDEN: Final = "..."
_MOST_LETTERS: Final = 4000
"""A trigger may raise a row of any length as its message, and a queue's task has no room for that."""


def wording(error: psycopg.Error) -> tuple[str, str | None]:
    """One line for everybody, and what it leaves out, for those who may see values; None where that is nothing.

    The exception itself keeps the first alone, since a traceback prints it as the cause of ours.
    """
    primary = error.diag.message_primary or _without_question(str(error))
    detail = error.diag.message_detail
    full = _line(f"{primary}; {detail}" if detail else primary)
    kind = (error.sqlstate or "")[:2]
    parts = (_without_values(primary) if kind == sqlstate.DATA_CLASS else primary, _without_row(kind, detail or ""))
    shown = _line("; ".join(part for part in parts if part))
    if error.diag.message_primary is not None:
        error.args = (shown,)
    return shown, None if shown == full else full


def _without_question(told: str) -> str:
    """The words of libpq about a connection that failed, without its own hint: ours asks the same."""
    return "\n".join(line for line in told.strip().splitlines() if not line.strip().startswith("Is the server running"))


def _without_row(kind: str, detail: str) -> str:
    """The part of a detail that quotes no row. Details of data and of constraints do, also in other languages than
    English.
    """
    if kind not in (sqlstate.DATA_CLASS, sqlstate.CONSTRAINT_CLASS, sqlstate.RAISED_CLASS):
        return detail
    partition = _PARTITION_KEY.match(detail)
    if partition:
        return f"partition key {partition[1]}"
    found = _KEY_VALUES.match(detail)
    return f"{found['key']}{(found['verb'] or '').rstrip('.')}" if found else ""


def _without_values(text: str) -> str:
    """A data exception's message: what is quoted at its end is a value, and in some forms what is quoted before."""
    shorter = _LAST_QUOTED.sub(f": {_HIDDEN}", text)
    return _QUOTED.sub(_HIDDEN, shorter) if shorter.startswith(('"', "value ", "time zone ")) else shorter


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_LETTERS else line[:_MOST_LETTERS] + _HIDDEN
