"""Record batches (magic 2): what a broker reads and writes of them, and the control batches that end transactions."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_BEHIND_CRC: Final = struct.Struct(">hiqqqhii")
_BEFORE_LENGTH: Final = 12
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch at its place in a partition."""

    offset: int
    data: bytes
    count: int
    producer: int
    epoch: int
    sequence: int
    is_transactional: bool

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.offset + self.count


def batches(data: bytes) -> Iterator[Batch]:
    """Those of a request, not placed yet."""
    at = 0
    while at < len(data):
        _, length, _, magic, _, attributes, last_delta, _, _, producer, epoch, sequence, _ = _HEADER.unpack_from(
            data, at
        )
        if magic != 2:
            raise ValueError(f"a batch of magic {magic}")
        end = at + _BEFORE_LENGTH + length
        yield Batch(
            offset=0,
            data=data[at:end],
            count=last_delta + 1,
            producer=producer,
            epoch=epoch,
            sequence=sequence,
            is_transactional=bool(attributes & _TRANSACTIONAL),
        )
        at = end


def placed(batch: Batch, offset: int) -> Batch:
    """The batch at an offset. The checksum does not cover the offset."""
    return Batch(
        offset=offset,
        data=struct.pack(">q", offset) + batch.data[8:],
        count=batch.count,
        producer=batch.producer,
        epoch=batch.epoch,
        sequence=batch.sequence,
        is_transactional=batch.is_transactional,
    )


def marker(*, producer: int, epoch: int, committed: bool) -> Batch:
    """The control batch that ends a transaction in a partition."""
    key, value = struct.pack(">hh", 0, int(committed)), struct.pack(">hi", 0, 0)
    body = bytes((0, 0, 0, _zigzag(len(key)))) + key + bytes((_zigzag(len(value)),)) + value + b"\0"
    record = bytes((_zigzag(len(body)),)) + body
    behind = _BEHIND_CRC.pack(_TRANSACTIONAL | _CONTROL, 0, 0, 0, producer, epoch, -1, 1) + record
    length = 4 + 1 + 4 + len(behind)
    data = struct.pack(">qiibI", 0, length, 0, 2, _crc32c(behind)) + behind
    return Batch(offset=0, data=data, count=1, producer=producer, epoch=epoch, sequence=-1, is_transactional=True)


def _zigzag(value: int) -> int:
    return value << 1


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
