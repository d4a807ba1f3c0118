"""Changes that a later copy of their table has made superfluous, taken out of what a slot sends: `Passing`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.log.protocol import PassedOver

_HEAD: Final = 5
"""Kind and oid before a relation's names; kind and count of a truncate."""
_OID_BYTES: Final = 4


class Passing:
    """For one read of a slot, from its first message. It loops over messages, of which few lie below the LSNs.

    The server describes a table once a read, and perhaps where it is passed over: the description then waits for the
    first change that is not. That of a partition, which tells where a change's row lies, goes with the change.
    """

    def __init__(self, passed_over: Iterable[PassedOver], *, captured_offset: int) -> None:
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

    def kept(self, messages: pa.BinaryArray) -> pa.BinaryArray:
        """Return what is left of the next messages."""
        return pa.array(self._kept(messages), messages.type) if self._below else messages

    def _kept(self, messages: pa.BinaryArray) -> Iterator[bytes]:
        for scalar in messages:
            message = scalar.as_py()
            match chr(message[0]):
                case "B":
                    self._commit_lsn = int.from_bytes(message[1:9])
                case "R":
                    oid = int.from_bytes(message[1:_HEAD])
                    schema, table, _ = message[_HEAD:].split(b"\0", 2)
                    self._names[oid] = (schema or b"pg_catalog", table)
                    self._waiting.pop(oid, None)
                    self._described.append((oid, message))
                    continue
                case "I" | "U" | "D":
                    oid = int.from_bytes(message[1:_HEAD])
                    if self._passes(oid):
                        self._leave([oid])
                        continue
                    yield from self._descriptions([oid])
                case "T":
                    at = range(_HEAD + 1, len(message), _OID_BYTES)
                    oids = [int.from_bytes(message[first : first + _OID_BYTES]) for first in at]
                    left = [oid for oid in oids if not self._passes(oid)]
                    if not left:
                        self._leave(oids)
                        continue
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

    def _passes(self, oid: int) -> bool:
        """By its oid, since it may have had another name then, and by its name, since it may have been made anew."""
        name = self._names.get(oid)
        below = 0 if name is None else self._below.get(name, 0)
        return self._commit_lsn < max(below, self._oids_below.get(oid, 0))
