"""The watermark: up to where the log was synced, kept in a file of its own and overwritten in place.

```
synced    magic 4 · segment 8 · size in bytes 8 · checksum 4
```

It is written after each sync of the log, before anybody is told that a change is durable, and is itself synced every
second or so. What that proves:

- Below the watermark all bytes of the log were synced. If any of them is bad or missing, what was acknowledged is
  damaged: recovery refuses.
- Above it, after a kill or a stop, nothing was acknowledged: the kernel has the watermark of the last acknowledgement.
- Above it, after a power loss, changes of the last second or so may have been acknowledged. They were synced,
  so a power loss by itself does not harm them; only damage to exactly these bytes passes for a torn write.

A watermark that is missing or torn proves nothing, and is no error: directories of older releases have none.
"""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

WATERMARK_NAME: Final = "synced"

_MAGIC: Final = b"PAW1"
_REACHED: Final = struct.Struct("<4sQQ")
_CHECKSUM: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The extent to which the log is durable: all segments before this one, and so much of it."""

    segment: int
    size_bytes: int


class Watermark:
    """The file, for the process that writes the log. A disk that refuses it leaves it where it was, which is still true
    and no reason to refuse a change.
    """

    def __init__(self, directory: Path) -> None:
        self._descriptor = os.open(directory / WATERMARK_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        self._is_ahead = False

    def advance(self, reached: Reached) -> None:
        """Errors: none."""
        content = _REACHED.pack(_MAGIC, reached.segment, reached.size_bytes)
        with suppress(OSError):
            os.pwrite(self._descriptor, content + _CHECKSUM.pack(zlib.crc32(content)), 0)
            self._is_ahead = True

    def sync(self) -> None:
        """Make it durable if it has advanced. Errors: none."""
        if self._is_ahead:
            self._is_ahead = False
            with suppress(OSError):
                os.fdatasync(self._descriptor)

    def close(self) -> None:
        self.sync()
        os.close(self._descriptor)


def read_watermark(directory: Path) -> Reached | None:
    """None where there is none that can be trusted."""
    try:
        content = (directory / WATERMARK_NAME).read_bytes()
    except FileNotFoundError:
        return None
    if len(content) != _REACHED.size + _CHECKSUM.size:
        return None
    magic, segment, size_bytes = _REACHED.unpack_from(content)
    if magic != _MAGIC or _CHECKSUM.unpack_from(content, _REACHED.size)[0] != zlib.crc32(content[: _REACHED.size]):
        return None
    return Reached(segment=segment, size_bytes=size_bytes)
