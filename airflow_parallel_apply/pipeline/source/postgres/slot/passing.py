"""Removes changes from what a slot sends: `Passing`. Either a later copy of their table has made them superfluous, or
nobody followed the table, though somebody had put it into the publication for a while: it is not registered, was
registered only after the change, or is a partition by now and sent these rows as a table of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_parallel_apply.pipeline.log.protocol import PassedOver
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import Registration
from airflow_parallel_apply.pipeline.source.postgres.wire.cells import Wire
from airflow_parallel_apply.pipeline.source.postgres.wire.messages import parse_truncate

_logger = logging.getLogger(__name__)

_RELATION, _TRUNCATE = ord("R"), ord("T")
_CHANGES: Final = np.isin(np.arange(256), [ord(letter) for letter in "IUD"])
_HEAD: Final = 5
"""Kind and oid before a relation's names; kind and count of a truncate."""
_OID_BYTES: Final = 4


class Passing:
    """For one read of a slot, from its first message. It loops over messages only where something may be taken out.
    `registration`: that of the followed tables and of their partitions, which are described beside their roots; None in
    a log of an older version, which takes all that is sent for followed.

    The server describes a table once a read, and perhaps where it is passed over: the description then waits for the
    first change that is not. That of a partition, which tells where a change's row lies, goes with the change.
    """

    def __init__(
        self,
        passed_over: Iterable[PassedOver],
        registration: Registration | None,
        *,
        captured_offset: int,
    ) -> None:
        self._oids = None if registration is None else registration.oids
        self._parts = frozenset[int]() if registration is None else registration.part_oids
        self._strangers: set[int] = set()
        """The oids of described tables that nobody follows."""
        self._told: set[int] = set()
        left = [one for one in passed_over if one.below_offset > captured_offset]
        self._below = {(one.schema.encode(), one.table.encode()): one.below_offset for one in left}
        tables = () if registration is None else registration.tables
        followed = {(table.schema, table.table): table.oid for table in tables}
        oids = (followed.get((one.schema, one.table)) if one.oid is None else one.oid for one in left)
        self._oids_below = {oid: one.below_offset for oid, one in zip(oids, left, strict=True) if oid is not None}
        for oid, first in () if registration is None else registration.since:
            if first > captured_offset:
                self._oids_below[oid] = max(first, self._oids_below.get(oid, 0))
        ended = () if registration is None else registration.left
        self._oids_up_to = {oid: end for oid, end in ended if end > captured_offset}
        self._names: dict[int, tuple[bytes, bytes]] = {}
        self._waiting: dict[int, bytes] = {}
        self._described: list[tuple[int, bytes]] = []
        """Since the last change."""
        self._commit_lsn = 0

    def name(self, oid: int, schema: str, table: str) -> None:
        """Know a table that the server has described before."""
        self._names[oid] = (schema.encode(), table.encode())
        if self._is_stranger(oid):
            self._strangers.add(oid)

    def follows(self, oid: int, commit_lsn: int) -> bool:
        """True if what a transaction that commits there did to a table is followed, and not in a later copy."""
        return oid in (self._oids or ()) and commit_lsn >= self._oids_below.get(oid, 0)

    def kept(self, messages: pa.BinaryArray) -> pa.BinaryArray:
        """Return what is left of the next messages."""
        is_by_place = bool(self._below or self._oids_below or self._oids_up_to)
        if is_by_place or self._strangers or self._described or self._has_strangers(messages):
            return pa.array(self._kept(messages), messages.type)
        return messages

    def _has_strangers(self, messages: pa.BinaryArray) -> bool:
        """True if a table is described that nobody follows, or a partition that sends rows as its own; or if what the
        last message describes is still to come.
        """
        wire = Wire(messages)
        kinds = wire.data[wire.starts]
        described = [_described(wire.message(index)) for index in np.flatnonzero(kinds == _RELATION).tolist()]
        if any(self._is_stranger(oid) for oid, _, _ in described) or (kinds[-1:] == _RELATION).any():
            return True
        return bool(self._parts) and not self._parts.isdisjoint(_oids_of_changes(wire, kinds))

    def _is_stranger(self, oid: int) -> bool:
        """True of a table that neither sends rows as its own nor is a partition of one that does."""
        return self._oids is not None and oid not in self._oids and oid not in self._parts

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
                    yield from self._descriptions([oid], of_rows=True)
                case "T":
                    at = range(_HEAD + 1, len(message), _OID_BYTES)
                    oids = [int.from_bytes(message[first : first + _OID_BYTES]) for first in at]
                    strange = [oid for oid in oids if self._is_strange(oid)]
                    left = [oid for oid in oids if oid not in strange and not self._passes(oid)]
                    if not left:
                        self._leave(oids)
                        continue
                    self._described = [one for one in self._described if one[0] not in strange]
                    yield from self._descriptions(left, of_rows=False)
                    message = b"".join(
                        (b"T", len(left).to_bytes(4), message[_HEAD : _HEAD + 1], *(oid.to_bytes(4) for oid in left))
                    )
            yield message

    def _leave(self, oids: Iterable[int]) -> None:
        """Have the descriptions of these tables wait."""
        self._waiting.update((oid, message) for oid, message in self._described if oid in oids)
        self._described.clear()

    def _descriptions(self, oids: Iterable[int], *, of_rows: bool) -> Iterator[bytes]:
        """Those that are due before a change of these tables. `of_rows`: then another one tells where the row lies."""
        for oid in oids:
            if oid in self._waiting:
                yield self._waiting.pop(oid)
        for oid, message in self._described:
            passes = self._passes(oid)
            if passes:
                self._waiting[oid] = message
            if of_rows or not passes:
                yield message
        self._described.clear()

    def _is_strange(self, oid: int) -> bool:
        """True if nobody follows the table of a change; told once."""
        if oid not in self._strangers and oid not in self._parts:
            return False
        if self._commit_lsn < self._oids_up_to.get(oid, 0):
            # It was followed then.
            return False
        if oid not in self._told:
            self._told.add(oid)
            _logger.warning(
                "Changes of %s are passed over: nobody follows the table, which was in the publication for a while.",
                b".".join(self._names.get(oid, (b"table", str(oid).encode()))).decode(),
            )
        return True

    def _passes(self, oid: int) -> bool:
        """By its oid, since it may have had another name then. What is no longer followed also by its name: the
        copied table may have been made in its place.
        """
        name = None if oid in (self._oids or ()) else self._names.get(oid)
        below = 0 if name is None else self._below.get(name, 0)
        return self._commit_lsn < max(below, self._oids_below.get(oid, 0))


def _oids_of_changes(wire: Wire, kinds: npt.NDArray[np.uint8]) -> set[int]:
    changes = np.flatnonzero(_CHANGES[kinds])
    oids = {*np.unique(wire.numbers(wire.starts[changes] + 1, ">u4")).tolist()}
    truncations = np.flatnonzero(kinds == _TRUNCATE).tolist()
    return oids.union(*(parse_truncate(wire.message(index)).oids for index in truncations))


def _described(message: bytes) -> tuple[int, str, str]:
    """The oid, schema and name of the table that a message describes."""
    schema, table, _ = message[_HEAD:].split(b"\0", 2)
    return int.from_bytes(message[1:_HEAD]), schema.decode() or "pg_catalog", table.decode()
