"""Files of checksummed frames: how each is written, and how damage is told from a write that a crash cut short.

```
file    magic 4 · kind 1 · number 8 · position of the first frame 8 · checksum 4 · then frames
frame   marker 4 · length 4 · checksum 4 · position 8 · synced 8 · payload
```

`synced` is how many bytes of the file were durable when the frame was written. So a bad frame below what a later frame
calls synced is damage to what was acknowledged; one above is a write that a crash left unfinished.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from airflow_parallel_apply.queue.model import QueueCorrupt

_MAGIC: Final = b"PAQ1"
_MARKER: Final = b"\xf1\x8fPA"
_HEADER: Final = struct.Struct("<4scQQ")
_CHECKSUM: Final = struct.Struct("<I")
_FRAME: Final = struct.Struct("<4sII")
_STAMP: Final = struct.Struct("<QQ")

HEADER_BYTES: Final = _HEADER.size + _CHECKSUM.size


class Kind(Enum):
    """The kind of file: log segment or snapshot."""

    LOG = b"L"
    SNAPSHOT = b"S"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One payload, and where it lies. `end` is the offset behind it."""

    position: int
    synced: int
    payload: bytes
    offset: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameFile:
    """A file of frames, read whole. `number` is in its name, too."""

    path: Path
    number: int
    first_position: int
    content: bytes

    @classmethod
    def read(cls, path: Path, kind: Kind) -> FrameFile | None:
        """None for one whose header was not even written. Errors: `QueueCorrupt`."""
        content = path.read_bytes()
        if len(content) < HEADER_BYTES:
            return None
        header = content[: _HEADER.size]
        magic, found, number, first_position = _HEADER.unpack(header)
        if (magic, found) != (_MAGIC, kind.value) or _CHECKSUM.unpack_from(content, _HEADER.size)[0] != zlib.crc32(
            header
        ):
            raise QueueCorrupt(f"{path} at byte 0: damaged, or no {kind.name.lower()} of a queue of this version")
        return cls(path=path, number=number, first_position=first_position, content=content)

    def frames(self) -> Iterator[Frame]:
        """Those in front of the first bad one, or of the end."""
        offset = HEADER_BYTES
        while (frame := self._frame_at(offset)) is not None:
            yield frame
            offset = frame.end

    def is_torn_at(self, offset: int) -> bool:
        """True if the damage from `offset` on was never durable, because no later frame says that it was."""
        start = self.content.find(_MARKER, offset + 1)
        while start != -1:
            later = self._frame_at(start)
            if later is not None and later.synced > offset:
                return False
            start = self.content.find(_MARKER, start + 1)
        return True

    def _frame_at(self, offset: int) -> Frame | None:
        body = offset + _FRAME.size
        if body + _STAMP.size > len(self.content):
            return None
        marker, length, checksum = _FRAME.unpack_from(self.content, offset)
        end = body + _STAMP.size + length
        if marker != _MARKER or end > len(self.content) or zlib.crc32(self.content[body:end]) != checksum:
            return None
        position, synced = _STAMP.unpack_from(self.content, body)
        return Frame(
            position=position, synced=synced, payload=self.content[body + _STAMP.size : end], offset=offset, end=end
        )


def encode_header(kind: Kind, number: int, first_position: int) -> bytes:
    """The first bytes of a file."""
    header = _HEADER.pack(_MAGIC, kind.value, number, first_position)
    return header + _CHECKSUM.pack(zlib.crc32(header))


def encode_frame(position: int, synced: int, payload: bytes) -> bytes:
    """One frame."""
    body = _STAMP.pack(position, synced) + payload
    return _FRAME.pack(_MARKER, len(payload), zlib.crc32(body)) + body
