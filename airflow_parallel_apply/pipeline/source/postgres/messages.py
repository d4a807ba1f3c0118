"""The messages of `pgoutput` (protocol 1) that come seldom and are parsed one by one: relations, truncates, messages.

Source: PostgreSQL's documentation, "Logical Replication Message Formats". All integers are big-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

CASCADE: Final = 1
RESTART_IDENTITY: Final = 2
_KEY_FLAG: Final = 1
_TRANSACTIONAL_FLAG: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WireColumn:
    """A column of a relation message."""

    name: str
    type_oid: int
    type_modifier: int
    key: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRelation:
    """What the server says about a table before it sends the table's first change, and again when that changed."""

    oid: int
    schema: str
    table: str
    replica_identity: str
    columns: tuple[WireColumn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WireTruncate:
    """TRUNCATE of tables together."""

    oids: tuple[int, ...]
    options: int

    @property
    def words(self) -> tuple[str, ...]:
        """The options as the log names them."""
        named = ((CASCADE, "cascade"), (RESTART_IDENTITY, "restart_identity"))
        return tuple(word for flag, word in named if self.options & flag)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireMessage:
    """What `pg_logical_emit_message` wrote."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 1

    def number(self, form: str) -> int:
        value: int = struct.unpack_from(form, self._data, self._at)[0]
        self._at += struct.calcsize(form)
        return value

    def text(self) -> str:
        end = self._data.index(b"\0", self._at)
        value = self._data[self._at : end].decode()
        self._at = end + 1
        return value

    def rest(self, length: int) -> bytes:
        return self._data[self._at : self._at + length]


def parse_relation(data: bytes) -> WireRelation:
    """Message `R`. An empty schema stands for pg_catalog."""
    cursor = _Cursor(data)
    oid = cursor.number(">I")
    schema = cursor.text() or "pg_catalog"
    table = cursor.text()
    identity = chr(cursor.number(">B"))
    columns = []
    for _ in range(cursor.number(">H")):
        flags = cursor.number(">B")
        name = cursor.text()
        columns.append(
            WireColumn(
                name=name,
                type_oid=cursor.number(">I"),
                type_modifier=cursor.number(">i"),
                key=bool(flags & _KEY_FLAG),
            )
        )
    return WireRelation(oid=oid, schema=schema, table=table, replica_identity=identity, columns=tuple(columns))


def parse_truncate(data: bytes) -> WireTruncate:
    """Message `T`."""
    cursor = _Cursor(data)
    count = cursor.number(">I")
    options = cursor.number(">B")
    return WireTruncate(oids=tuple(cursor.number(">I") for _ in range(count)), options=options)


def parse_message(data: bytes) -> WireMessage:
    """Message `M`."""
    cursor = _Cursor(data)
    flags = cursor.number(">B")
    lsn = cursor.number(">Q")
    prefix = cursor.text()
    content = cursor.rest(cursor.number(">I"))
    return WireMessage(transactional=bool(flags & _TRANSACTIONAL_FLAG), lsn=lsn, prefix=prefix, content=content)
