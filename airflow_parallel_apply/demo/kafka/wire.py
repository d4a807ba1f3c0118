"""Kafka's wire format, as far as the versions that the broker offers need it: none of them is a flexible one."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import TypeVar

_T = TypeVar("_T")


class Request:
    """Reads the fields of a request one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        """A number: `b`, `h`, `i` or `q`."""
        (found,) = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(form)
        return int(found)

    def text(self) -> str:
        """A text; a null is empty."""
        length = self.number("h")
        return self._take(max(length, 0)).decode()

    def content(self) -> bytes:
        """Bytes; a null is empty."""
        return self._take(max(self.number("i"), 0))

    def array(self, read: Callable[[], _T]) -> list[_T] | None:
        """As many things as an array has; None for a null."""
        length = self.number("i")
        return None if length < 0 else [read() for _ in range(length)]

    def _take(self, length: int) -> bytes:
        found = self._data[self._at : self._at + length]
        self._at += length
        return found


def numbers(form: str, *values: int) -> bytes:
    """Numbers, as `struct` packs them."""
    return struct.pack(f">{form}", *values)


def text(value: str | None) -> bytes:
    """A text, or a null."""
    if value is None:
        return numbers("h", -1)
    encoded = value.encode()
    return numbers("h", len(encoded)) + encoded


def content(value: bytes) -> bytes:
    """Bytes."""
    return numbers("i", len(value)) + value


def array(items: Iterable[bytes]) -> bytes:
    """An array of what is written already."""
    found = list(items)
    return numbers("i", len(found)) + b"".join(found)
