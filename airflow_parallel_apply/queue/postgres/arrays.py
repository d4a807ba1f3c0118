"""Arrays as PostgreSQL reads them, written at once: a modify of many tasks sends little else.

psycopg adapts an array element by element, in Python, which costs more than the server spends on the task.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from uuid import UUID


def plain_array(values: Iterable[object]) -> str:
    """An array literal of numbers, booleans and other values that need no quotes; None is null."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def id_array(ids: Iterable[UUID]) -> str:
    """An array literal of UUIDs."""
    return "{" + ",".join([one.hex for one in ids]) + "}"


def time_array(moments: Iterable[datetime]) -> str:
    """An array literal of times with a zone."""
    return "{" + ",".join(map(_time_text, moments)) + "}"


def text_array(texts: Iterable[str | None]) -> str:
    """An array literal of texts, which must not contain NUL; None is null."""
    return "{" + ",".join(["NULL" if text is None else _quoted(text) for text in texts]) + "}"


@lru_cache
def _time_text(moment: datetime) -> str:
    # Tasks that come in one call mostly come at one time.
    return f'"{moment.isoformat()}"'


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
