"""Watches the harm that a slot does to its source while nobody reads from it, or too little is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from psycopg.rows import dict_row

from airflow_parallel_apply.pipeline.errors import START_ANEW
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side
from airflow_parallel_apply.pipeline.source.postgres.session import Session, statement

_LITTLE_LEFT_BYTES: Final = 2**30
"""WAL that may still be written before the server gives a slot up."""


def slot_trouble(session: Session, name: str, *, much_retained_bytes: int) -> tuple[Finding, ...]:
    """Find what is wrong with the slot `name`. Errors: psycopg's own."""
    cursor = session.catalog().cursor(row_factory=dict_row)
    slot = cursor.execute(statement("slot_watch"), {"slot": name}).fetchone()
    if slot is None:
        return (_finding(name, f"slot {name} is gone: changes are missing", Severity.ERROR, note=_ANEW),)
    return tuple(_trouble(slot, name, much_retained_bytes))


_ANEW: Final = f"There is no way to go on. {START_ANEW}"
_READ: Final = "Start a run, which lets it go on, or drop the pipeline."


def _trouble(slot: Mapping[str, Any], name: str, much_retained_bytes: int) -> Iterator[Finding]:
    if slot["wal_status"] == "lost" or slot["reason"] is not None:
        why = f" ({slot['reason']})" if slot["reason"] else ""
        yield _finding(name, f"slot {name} lost WAL that it still needed{why}", Severity.ERROR, note=_ANEW)
        return
    left = slot["safe_wal_size"]
    if slot["wal_status"] == "unreserved" or (left is not None and left < _LITTLE_LEFT_BYTES):
        yield _finding(
            name,
            f"slot {name} is about to be given up by the server: {_megabytes(max(left or 0, 0))} of WAL are left "
            "until then",
            Severity.WARNING,
            "ALTER SYSTEM SET max_slot_wal_keep_size = -1",
            "SELECT pg_reload_conf()",
            note=f"Gives it time, at the price of disk. {_READ}",
        )
    retained = slot["retained_bytes"] or 0
    if retained >= much_retained_bytes:
        reader = "is being read" if slot["active"] else "is inactive"
        yield _finding(
            name,
            f"slot {name} {reader} and holds back {_megabytes(retained)} of the source's WAL",
            Severity.WARNING,
            note=_READ,
        )


def _megabytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MB"


def _finding(name: str, what: str, severity: Severity, *fix: str, note: str = "") -> Finding:
    return Finding(severity=severity, side=Side.SOURCE, where=name, what=what, fix=fix, note=note)
