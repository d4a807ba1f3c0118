"""A doubt: what the slot's stream does not tell of a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """What the stream does not tell of a table. `note`: instead of copying it anew. `more`: what else helps."""

    table: str
    what: str
    note: str = ""
    more: str = ""
