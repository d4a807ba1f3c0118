"""Ids of tasks from 16 bytes, which is how they are drawn, sent and written down.

Each task passes here whenever it comes or goes: `UUID(bytes=…)` takes three times as long.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID, SafeUUID

from airflow_parallel_apply.queue.model import TaskId

ID_BYTES: Final = 16

_VERSION: Final = bytes(byte & 0x0F | 0x40 for byte in range(256))
_VARIANT: Final = bytes(byte & 0x3F | 0x80 for byte in range(256))
"""With `_VERSION`: translate random bytes into those that `uuid4` has in these two places."""

_new: Final[Callable[[type[UUID]], Any]] = object.__new__
_slots: Final[Any] = UUID.__dict__
_set_number: Final[Callable[[UUID, int], None]] = _slots["int"].__set__
_set_safety: Final[Callable[[UUID, SafeUUID], None]] = _slots["is_safe"].__set__
"""These two are all that a UUID has, and it refuses to be written."""
_UNKNOWN: Final = SafeUUID.unknown


def id_of(content: bytes) -> TaskId:
    """The id with these bytes; the caller has counted them."""
    made: TaskId = _new(UUID)
    _set_number(made, int.from_bytes(content))
    _set_safety(made, _UNKNOWN)
    return made


def drawn_ids(count: int) -> list[TaskId]:
    """As `uuid4`, with one call of the system for all."""
    drawn = bytearray(os.urandom(ID_BYTES * count))
    drawn[6::ID_BYTES] = drawn[6::ID_BYTES].translate(_VERSION)
    drawn[8::ID_BYTES] = drawn[8::ID_BYTES].translate(_VARIANT)
    content = bytes(drawn)
    return [id_of(content[start : start + ID_BYTES]) for start in range(0, len(content), ID_BYTES)]
