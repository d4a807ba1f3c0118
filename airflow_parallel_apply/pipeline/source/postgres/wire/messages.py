"""The messages of `pgoutput` (protocol 1) that come seldom and are parsed one by one: relations, truncates, messages.

Source: PostgreSQL's documentation, "Logical Replication Message Formats". All integers are big-endian.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

CASCADE: Final = 1
RESTART_IDENTITY: Final = 2
_KEY_FLAG: Final = 1
_TRANSACTIONAL_FLAG: Final = 1
_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class WireColumn:
    """A column of a relation message. `type_name`: as the server told it beside, which it does of types that are not
    built in: for one that the catalog has lost.
    """

    name: str
    type_oid: int
    type_modifier: int
    key: bool
    type_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRelation:
    """The server's description of a table, sent before the table's first change and again after it has changed."""

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
    """A message that `pg_logical_emit_message` wrote."""

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
        # A message's prefix is whatever somebody wrote; what it cannot be is ours.
        value = self._data[self._at : end].decode(errors="replace")
        self._at = end + 1
        return value

    def rest(self, length: int) -> bytes:
        return self._data[self._at : self._at + length]


def parse_type(data: bytes) -> tuple[int, str]:
    """Message `Y`: a type's oid, and its name as a session without a search path writes it."""
    cursor = _Cursor(data)
    oid = cursor.number(">I")
    schema, name = cursor.text(), cursor.text()
    # An array type is named after its elements'.
    name, array = (name[1:], "[]") if name.startswith("_") else (name, "")
    return oid, ".".join(_quoted(part) for part in (schema, name) if part) + array


def parse_relation(data: bytes, types: Mapping[int, str] = MappingProxyType({})) -> WireRelation:
    """Message `R`. An empty schema stands for pg_catalog. `types`: what `parse_type` found so far."""
    cursor = _Cursor(data)
    oid = cursor.number(">I")
    schema = cursor.text() or "pg_catalog"
    table = cursor.text()
    identity = chr(cursor.number(">B"))
    columns = []
    for _ in range(cursor.number(">H")):
        flags = cursor.number(">B")
        name = cursor.text()
        type_oid = cursor.number(">I")
        columns.append(
            WireColumn(
                name=name,
                type_oid=type_oid,
                type_modifier=cursor.number(">i"),
                key=bool(flags & _KEY_FLAG),
                type_name=types.get(type_oid),
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


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'
