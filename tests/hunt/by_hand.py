"""Hints that ask a person to change the target himself, and what he runs there then."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tests.hunt.step import Step

_BY_HAND: Final = re.compile(
    r"(?i)change the target|make the target|make it|create it there|by hand|on both sides|add the column|add it there|"
    r"the target has a|turns rows away"
)


def named(name: str, told: str) -> bool:
    """True if a text has the name as a word."""
    return re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])", told) is not None


def repeated(steps: Iterable[Step], told: str) -> list[str]:
    """The statements that a person runs at the target for the steps that a text names. Those of the source have to be
    named by what is in a statement, too: "DDL" and "identity" are words of a cause. What was done at the target is
    undone for these.
    """
    able = [step for step in steps if step.by_hand]
    text = "; ".join(one for step in able for one in step.by_hand)
    return [
        one
        for step in able
        if any(named(name, told) and (step.is_at_target or named(name, text)) for name in step.names)
        for one in step.by_hand
    ]


def is_by_hand(hint: str) -> bool:
    """True if a hint asks a person to change the target himself."""
    return _BY_HAND.search(hint) is not None
