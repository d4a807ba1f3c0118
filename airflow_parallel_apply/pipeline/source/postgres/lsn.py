"""LSNs as PostgreSQL writes them."""

from __future__ import annotations


def lsn_text(lsn: int) -> str:
    """As PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
