"""Reads the signed messages that are still to be captured.

The server decodes its WAL again for that, so it is asked only where something is in doubt.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import psycopg

from airflow_parallel_apply.pipeline.model.sent_ddl import statements, written
from airflow_parallel_apply.pipeline.source.postgres.catalog.shape import Shape, shape_of_row
from airflow_parallel_apply.pipeline.source.postgres.ddl.ddl_messages import (
    DDL_PREFIX,
    SIGHTING_PREFIX,
    VERSION,
    decoded,
    is_signed,
)
from airflow_parallel_apply.pipeline.source.postgres.ddl_capture import can_verify, ddl_objects
from airflow_parallel_apply.pipeline.source.postgres.pending import Pending
from airflow_parallel_apply.pipeline.source.postgres.wire.messages import parse_message

REWRITE_PREFIX: Final = "parallel_apply.rewrite"
_SUBTRANSACTIONS_PREFIX: Final = "parallel_apply.subtransactions"
TYPE_WORDS: Final = "type|table"
"""Words of DDL that alters a type, be it that of a table's rows."""
TYPE_NAME: Final = """
CASE
    WHEN ((t.xmin::text::bigint - %(horizon)s::bigint) & 4294967295) < 2147483648 THEN ''
    ELSE t.typname::text
END
"""
"""A type's name for `SignedMessage.mentions`, if it cannot have had another one since a horizon."""
_REWRITES: Final = r"type|set\s+expression|generated|(?<!set\s)(?<!drop\s)default"
_ESCAPES: Final = re.compile(r"(?<!\w)e(?=')", re.IGNORECASE)
"""The letter before a string with escapes."""
_QUOTES: Final = str.maketrans("", "", "'\"")
"""Leaves them out: what stands in a block's text has more of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedMessage:
    """A message. `ddl`: what the target runs; empty of any other. `part`: a table with rows that an ALTER TABLE was
    about to rewrite, with the file that it had and whether the statement had no USING. `shape`: what a followed table
    had become; `is_exact`: its texts are printed as ours are, which an earlier version's event trigger does not see to.
    `writers`: what the catalog calls the transaction: its own id, and those of its subtransactions that had altered
    something when DDL was sent.
    """

    xid: int
    writers: frozenset[int] = frozenset()
    ddl: str = ""
    part: int | None = None
    file: int = 0
    is_plain: bool = False
    shape: Shape | None = None
    is_exact: bool = False

    def mentions(self, words: str, *names: str) -> bool:
        """True if the message is DDL that contains the words, a pattern, and all of the names: a transaction may do
        more than it sends. A name that is not known is empty. For a block that builds its statements at run time the
        words suffice.
        """
        return self._has(words) and (self._builds or all(self._has(_name(name)) for name in names if name))

    def drops(self, type_name: str) -> float:
        """How many attributes of a type it may drop."""
        if not self.mentions("drop", type_name):
            return 0
        return math.inf if self._builds else self._count("drop")

    def retypes(self, column: str, tables: Iterable[tuple[str, str]] = ()) -> float:
        """How many of its statements may change the type of a column of a table with one of these names, `schema` and
        `table`, or, without names, of any table: none does so twice.
        """
        return self._statements_of(column, r"(set\s+data\s+)?", "type", tables)

    def recomputes(self, column: str, tables: Iterable[tuple[str, str]]) -> float:
        """The same of those that may give a computed column another expression."""
        return self._statements_of(column, r"set\s+", "expression", tables)

    def rewrites(self, tables: Iterable[tuple[str, str]]) -> float:
        """The same of those that may rewrite such a table."""
        return self._count_of(_REWRITES, tables)

    def _statements_of(self, column: str, words: str, last: str, tables: Iterable[tuple[str, str]]) -> float:
        if self._builds:
            return math.inf if self._has(last) else 0
        return self._count_of(rf"{_name(column)}\s+{words}{last}", tables)

    def _count_of(self, words: str, tables: Iterable[tuple[str, str]]) -> float:
        if self._builds:
            return math.inf
        names = "|".join(rf"(?<!\.)({_name(schema)}\.)?{_name(table)}" for schema, table in tables)
        parts = (replace(self, ddl=one) for one in statements(self.ddl))
        return sum(one._has(words) and (not names or one._has(names)) for one in parts)

    @property
    def _builds(self) -> bool:
        return self._has(r"execute(?!\s+(function|procedure|on)\b)")

    def _has(self, words: str) -> bool:
        return self._count(words) > 0

    def _count(self, words: str) -> int:
        text = _ESCAPES.sub("", written(self.ddl)).translate(_QUOTES)
        return sum(1 for _ in re.finditer(rf"(?<!\w)({words})(?!\w)", text, re.IGNORECASE))


def signed_messages(pending: Pending) -> tuple[SignedMessage, ...]:
    """Read them in the order of the stream. Errors: psycopg's own."""
    connection = pending.connection
    if not can_verify(ddl_objects(connection)):
        return ()
    with suppress(psycopg.errors.InsufficientPrivilege):
        pending.bring_to_disk()
    found: list[SignedMessage] = []
    writers: dict[int, set[int]] = {}
    for xid, data in pending.read("signed_messages"):
        message = parse_message(bytes(data))
        if message.transactional and is_signed(connection, xid, message):
            content = decoded(connection, message)
            writers.setdefault(xid, {xid})
            if message.prefix == _SUBTRANSACTIONS_PREFIX:
                writers[xid].update(map(int, content.split()))
            else:
                found.append(_parsed(xid, message.prefix, content))
    return tuple(replace(message, writers=frozenset(writers[message.xid])) for message in found)


def writers_of(messages: Iterable[SignedMessage]) -> frozenset[int]:
    """Return what the catalog calls the transactions of these messages."""
    return frozenset().union(*(message.writers for message in messages))


def _name(name: str) -> str:
    """The pattern of a name or a label, however a text quotes it."""
    return re.escape(name.translate(_QUOTES))


def _parsed(xid: int, prefix: str, content: bytes) -> SignedMessage:
    if prefix == DDL_PREFIX:
        return SignedMessage(xid=xid, ddl=content.decode())
    if prefix == REWRITE_PREFIX:
        sent = json.loads(content)
        return SignedMessage(xid=xid, part=sent["part"], file=sent["file"], is_plain=sent["is_plain"])
    if prefix == SIGHTING_PREFIX and (sent := json.loads(content))["version"] == VERSION:
        return SignedMessage(xid=xid, shape=shape_of_row(sent["shape"]), is_exact=sent.get("is_exact", False))
    return SignedMessage(xid=xid)
