"""A log that the release before wrote, and what it was captured from."""

from __future__ import annotations

from pathlib import Path
from typing import Final

LOG: Final = Path(__file__).parent / "log"
"""The log of the last version whose offsets were called LSN, whose replica identities were PostgreSQL's letters and
whose columns said no kind of key. It was captured from `SETUP`, then from `CHANGES`, with a capture after the first
twenty of them.
"""

_TEXT = Path(__file__).with_name("history.sql").read_text()


def _statements(text: str) -> tuple[str, ...]:
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return tuple(found.strip() for found in plain.split("\n\n") if found.strip())


SETUP, CHANGES = (_statements(part) for part in _TEXT.split("-- follow\n"))
"""Statements, each a transaction: before the slot, and behind it."""
