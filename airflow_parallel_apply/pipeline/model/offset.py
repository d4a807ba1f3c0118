"""Offsets: where a source stands in what it committed."""

from __future__ import annotations

from typing import TypeAlias

Offset: TypeAlias = int
"""A source's own position as one integer of 63 bits, which only grows, such as a binlog's file and position.
Only the source knows its form for people: `SourceConnector.show_offset`, `parse_offset`.
"""
