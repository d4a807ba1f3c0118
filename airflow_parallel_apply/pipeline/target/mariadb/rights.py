"""Rights of a session's user on which it depends what the server shows of a table."""

from __future__ import annotations

import re
from typing import Final

from airflow_parallel_apply.pipeline.target.mariadb.quoting import shown
from airflow_parallel_apply.pipeline.target.mariadb.session import Session

_GRANT: Final = re.compile(
    r"GRANT (?P<rights>.+) ON (?:\*|`(?P<database>(?:[^`]|``)+)`)\.(?:\*|`(?P<table>(?:[^`]|``)+)`) TO "
)
_TRIGGER: Final = {"TRIGGER", "ALL PRIVILEGES"}


def account(session: Session) -> str:
    """The user as a GRANT names it, with the host of its definition. Errors: the driver's own."""
    found = session.row("SELECT CURRENT_USER()")
    user, _, host = str(found[0] if found else "").rpartition("@")
    return f"{_text(user)}@{_text(host)}"


def sees_triggers(session: Session, database: str, table: str) -> bool:
    """True if no trigger of a table is hidden from the user: some releases show them only to who may make them.

    Errors: the driver's own.
    """
    place = session.folded((database, table))
    return any(_is_over(session, grant, place) for (grant,) in session.rows("SHOW GRANTS"))


def trigger_grant(session: Session, database: str) -> str:
    """The statement that lets the user see all triggers of a database. Errors: the driver's own."""
    pattern = shown(database).replace("_", r"\_")
    return f"GRANT TRIGGER ON {pattern}.* TO {account(session)}"


def _is_over(session: Session, grant: str, place: tuple[str, str]) -> bool:
    found = _GRANT.match(grant)
    if found is None or _TRIGGER.isdisjoint(found["rights"].split(", ")):
        return False
    named = [(found[part] or "").replace("``", "`") for part in ("database", "table")]
    database, table = session.folded((named[0], named[1]))
    return (not database or _is_like(place[0], database)) and table in ("", place[1])


def _is_like(name: str, pattern: str) -> bool:
    """As LIKE has it."""
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    return re.fullmatch("".join(wild.get(part) or re.escape(part[-1]) for part in parts), name, re.DOTALL) is not None


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
