"""Builds `pgoutput` messages, and decodes changes one by one in the plainest way: what the decoder is compared with."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

UNSENT = object()
Value = object
Row = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One change; `old` with `marker` K or O."""

    kind: str
    oid: int
    new: Row | None = None
    old: Row | None = None
    marker: str | None = None


@dataclass(frozen=True, slots=True)
class Transaction:
    """Changes that committed together; other messages may stand among them."""

    changes: tuple[Change | bytes, ...]
    xid: int = 7
    lsn: int = 100
    microseconds: int = 1


@dataclass(slots=True)
class Expected:
    """Rows as (seqno, fragno, operation, oid, values, unsent, old key), transactions as (seqno, row count)."""

    rows: list[tuple[object, ...]] = field(default_factory=list)
    transactions: list[tuple[int, int]] = field(default_factory=list)


def relation(oid: int, name: str, columns: tuple[tuple[str, bool], ...], identity: str = "d") -> bytes:
    head = b"R" + struct.pack(">I", oid) + b"public\0" + name.encode() + b"\0" + identity.encode()
    body = b"".join(
        struct.pack(">B", key) + column.encode() + b"\0" + struct.pack(">Ii", 25, -1) for column, key in columns
    )
    return head + struct.pack(">H", len(columns)) + body


def truncate(oids: tuple[int, ...], options: int = 0) -> bytes:
    return b"T" + struct.pack(">IB", len(oids), options) + b"".join(struct.pack(">I", oid) for oid in oids)


def message(prefix: str, content: bytes, *, transactional: bool = True, lsn: int = 50) -> bytes:
    return b"M" + struct.pack(">BQ", transactional, lsn) + prefix.encode() + b"\0" + struct.pack(
        ">I", len(content)
    ) + content  # fmt: skip


def messages(transaction: Transaction) -> list[bytes]:
    """From begin to commit."""
    begin = b"B" + struct.pack(">QqI", transaction.lsn, transaction.microseconds, transaction.xid)
    end = b"C" + struct.pack(">BQQq", 0, transaction.lsn, transaction.lsn + 8, transaction.microseconds)
    return [begin, *(one if isinstance(one, bytes) else encoded(one) for one in transaction.changes), end]


def encoded(change: Change) -> bytes:
    parts = [change.kind.encode(), struct.pack(">I", change.oid)]
    if change.old is not None:
        parts += [(change.marker or "K").encode(), _tuple(change.old)]
    if change.new is not None:
        parts += [b"N", _tuple(change.new)]
    return b"".join(parts)


def expected(transactions: list[Transaction], keys: dict[int, tuple[int, ...]]) -> Expected:
    """The rows that the log shall hold; `keys` are the indexes of each table's key columns."""
    found = Expected()
    seqno = 0
    for transaction in transactions:
        rows = [row for one in transaction.changes if isinstance(one, Change) for row in _rows(one, keys[one.oid])]
        if rows:
            found.rows += [(seqno, fragno, *row) for fragno, row in enumerate(rows)]
            found.transactions.append((seqno, len(rows)))
            seqno += 1
    return found


def _rows(change: Change, key: tuple[int, ...]) -> list[tuple[object, ...]]:
    if change.kind == "D":
        return [("D", change.oid, _only(change.old or (), key), None, None)]
    new = list(change.new or ())
    if change.kind == "U" and change.old is not None:
        for index, value in enumerate(new):
            if value is UNSENT and (change.marker == "O" or index in key):
                new[index] = change.old[index]
        if any(new[index] != change.old[index] for index in key):
            old_key = [change.old[index] for index in key]
            return [
                ("X", change.oid, _only(change.old, key), None, None),
                ("K", change.oid, _sent(new), _unsent(new), old_key),
            ]
    return [(change.kind, change.oid, _sent(new), _unsent(new), None)]


def _only(row: Row, key: tuple[int, ...]) -> list[Value]:
    return [value if index in key else None for index, value in enumerate(row)]


def _sent(row: list[Value]) -> list[Value]:
    return [None if value is UNSENT else value for value in row]


def _unsent(row: list[Value]) -> list[int] | None:
    return [index for index, value in enumerate(row) if value is UNSENT] or None


def _tuple(row: Row) -> bytes:
    parts = [struct.pack(">H", len(row))]
    for value in row:
        if value is None:
            parts.append(b"n")
        elif value is UNSENT:
            parts.append(b"u")
        else:
            text = str(value).encode()
            parts += [b"t", struct.pack(">I", len(text)), text]
    return b"".join(parts)
