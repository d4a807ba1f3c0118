"""Changes that are taken out of what a slot sends: `Passing`. A later copy of their table has made them superfluous, or
nobody follows the table, which was in the publication for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_parallel_apply.pipeline.log.protocol import PassedOver
from airflow_parallel_apply.pipeline.source.postgres.cells import Wire

_logger = logging.getLogger(__name__)

_RELATION: Final = ord("R")
_HEAD: Final = 5
"""Kind and oid before a relation's names; kind and count of a truncate."""
_OID_BYTES: Final = 4


class Passing:
    """For one read of a slot, from its first message. It loops over messages only where something may be taken out.
    `is_followed` tells it of a table, by oid, schema and name; also of partitions, which are described beside their
    roots.

    The server describes a table once a read, and perhaps where it is passed over: the description then waits for the
    first change that is not. That of a partition, which tells where a change's row lies, goes with the change.
    """

    def __init__(
        self,
        passed_over: Iterable[PassedOver],
        *,
        captured_offset: int,
        is_followed: Callable[[int, str, str], bool],
    ) -> None:
        self._is_followed = is_followed
        self._strangers: dict[int, str] = {}
        """Names of described tables that nobody follows, by oid."""
        self._told: set[int] = set()
        left = [one for one in passed_over if one.below_offset > captured_offset]
        self._below = {(one.schema.encode(), one.table.encode()): one.below_offset for one in left}
        self._oids_below = {one.oid: one.below_offset for one in left if one.oid is not None}
        self._names: dict[int, tuple[bytes, bytes]] = {}
        self._waiting: dict[int, bytes] = {}
        self._described: list[tuple[int, bytes]] = []
        """Since the last change."""
        self._commit_lsn = 0

    def name(self, oid: int, schema: str, table: str) -> None:
        """Know a table that the server has described before."""
        self._names[oid] = (schema.encode(), table.encode())
        if self._is_followed(oid, schema, table):
            self._strangers.pop(oid, None)
        else:
            self._strangers.setdefault(oid, f"{schema}.{table}")

    def kept(self, messages: pa.BinaryArray) -> pa.BinaryArray:
        """Return what is left of the next messages."""
        if self._below or self._strangers or self._described or self._has_strangers(messages):
            return pa.array(self._kept(messages), messages.type)
        return messages

    def _has_strangers(self, messages: pa.BinaryArray) -> bool:
        wire = Wire(messages)
        described = np.flatnonzero(wire.data[wire.starts] == _RELATION).tolist()
        return any(not self._is_followed(*_described(wire.message(index))) for index in described)

    def _kept(self, messages: pa.BinaryArray) -> Iterator[bytes]:
        for scalar in messages:
            message = scalar.as_py()
            match chr(message[0]):
                case "B":
                    self._commit_lsn = int.from_bytes(message[1:9])
                case "R":
                    oid, schema, table = _described(message)
                    self.name(oid, schema, table)
                    self._waiting.pop(oid, None)
                    self._described.append((oid, message))
                    continue
                case "I" | "U" | "D":
                    oid = int.from_bytes(message[1:_HEAD])
                    if self._is_strange(oid) or self._passes(oid):
                        self._leave([oid])
                        continue
                    yield from self._descriptions([oid])
                case "T":
                    at = range(_HEAD + 1, len(message), _OID_BYTES)
                    oids = [int.from_bytes(message[first : first + _OID_BYTES]) for first in at]
                    strange = [oid for oid in oids if self._is_strange(oid)]
                    left = [oid for oid in oids if oid not in strange and not self._passes(oid)]
                    if not left:
                        self._leave(oids)
                        continue
                    self._described = [one for one in self._described if one[0] not in strange]
                    yield from self._descriptions(left)
                    message = b"".join(
                        (b"T", len(left).to_bytes(4), message[_HEAD : _HEAD + 1], *(oid.to_bytes(4) for oid in left))
                    )
            yield message

    def _leave(self, oids: Iterable[int]) -> None:
        """Have the descriptions of these tables wait."""
        self._waiting.update((oid, message) for oid, message in self._described if oid in oids)
        self._described.clear()

    def _descriptions(self, oids: Iterable[int]) -> Iterator[bytes]:
        """Those that are due before a change of these tables."""
        for oid in oids:
            if oid in self._waiting:
                yield self._waiting.pop(oid)
        for oid, message in self._described:
            if self._passes(oid):
                self._waiting[oid] = message
            else:
                yield message
        self._described.clear()

    def _is_strange(self, oid: int) -> bool:
        """True if nobody follows the table of a change; told once."""
        if oid not in self._strangers:
            return False
        if oid not in self._told:
            self._told.add(oid)
            _logger.warning(
                "Changes of %s are passed over: nobody follows the table, which was in the publication for a while.",
                self._strangers[oid],
            )
        return True

    def _passes(self, oid: int) -> bool:
        """By its oid, since it may have had another name then, and by its name, since it may have been made anew."""
        name = self._names.get(oid)
        below = 0 if name is None else self._below.get(name, 0)
        return self._commit_lsn < max(below, self._oids_below.get(oid, 0))


def _described(message: bytes) -> tuple[int, str, str]:
    """The oid, schema and name of the table that a message describes."""
    schema, table, _ = message[_HEAD:].split(b"\0", 2)
    return int.from_bytes(message[1:_HEAD]), schema.decode() or "pg_catalog", table.decode()
