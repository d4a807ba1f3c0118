"""Limits of a single call, so that no client can bring the service down; a refusal names the limit exceeded."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """Sizes of calls, and how long a call may wait (the client asks again behind it)."""

    max_message_bytes: int = 16 * 2**20
    max_value_bytes: int = 2**20
    max_entries: int = 50_000
    """Entries of one modify, or names and ids of any other call."""
    max_wait: timedelta = timedelta(minutes=1)

    def __post_init__(self) -> None:
        for name in ("max_message_bytes", "max_value_bytes", "max_entries"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1")

    def check_value(self, text: str) -> None:
        """Raise ValueError for one that is too large."""
        # Of UTF-8, which has up to four bytes a character.
        if len(text) > self.max_value_bytes // 4 and len(text.encode()) > self.max_value_bytes:
            raise ValueError(f"a value has at most {self.max_value_bytes} bytes here, this one has more")

    def check_entries(self, count: int) -> None:
        """Raise ValueError for too long a list."""
        if count > self.max_entries:
            raise ValueError(f"a call has at most {self.max_entries} entries here, this one has {count}")
