"""A doubt: what the slot's stream does not tell of a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A change of a table that the stream does not tell. `note`: advice instead of a new copy. `first`: what to do
    before the copy. `more`: what else helps. `unless`: the condition on which somebody may vouch for the older rows
    instead of a copy; empty: never.
    """

    table: str
    what: str
    note: str = ""
    first: str = ""
    unless: str = ""
    more: str = ""
