"""Logical messages that claim to be DDL: which of them are, and what they say."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import psycopg

from airflow_parallel_apply.pipeline.model.gone_rows import REMOVAL_PREFIX
from airflow_parallel_apply.pipeline.source.postgres.ddl_capture import can_verify, ddl_objects
from airflow_parallel_apply.pipeline.source.postgres.session import Session
from airflow_parallel_apply.pipeline.source.postgres.wire.messages import WireMessage

_logger = logging.getLogger(__name__)

DDL_PREFIX: Final = "parallel_apply.ddl"
SIGHTING_PREFIX: Final = "parallel_apply.sighting"
VERSION: Final = 1
"""Version of a sighting's contents; those of others are skipped, since they prove no more than their absence does."""
SCHEMA_VERSION: Final = 2
"""That of one which tells the new name of a schema, and the tables that are in it."""
_SIGNATURE_BYTES: Final = 32
_MOST_TOLD: Final = 5
"""Warnings of one read: a stranger may send as many messages as he likes."""


def is_signed(connection: psycopg.Connection[Any], xid: int, message: WireMessage) -> bool:
    """True if the source's own function wrote a message, in this transaction. Ask only if `can_verify`."""
    found = connection.execute(
        "SELECT parallel_apply.ddl_is_signed(%s::text, %s::text, %s::bytea)",
        [str(xid), message.prefix, message.content],
    ).fetchone()
    return bool(found and found[0])


def decoded(connection: psycopg.Connection[Any], message: WireMessage) -> bytes:
    """A signed message's text in UTF-8. Names and values are sent in our encoding, a message's content as it lies
    there, in its database's.
    """
    content = message.content[_SIGNATURE_BYTES:]
    found = connection.execute("SELECT convert_from(%s, getdatabaseencoding())", [content]).fetchone()
    return str(found[0]).encode() if found else b""


class DdlMessages:
    """Judges the messages of one read of the slot. `sighted` takes the commit LSN and the text of a sighting that the
    source sent. Not thread-safe.
    """

    def __init__(self, session: Session, sighted: Callable[[int, bytes], None]) -> None:
        self._session = session
        self._sighted = sighted
        self._can_verify: bool | None = None
        self._refused_count = 0

    def text(self, xid: int, commit_lsn: int, message: WireMessage) -> bytes | None:
        """The statement in a message, in UTF-8; None where `parallel_apply.send_ddl` did not write it, or not in this
        transaction. Only the server has the keys, so it decides.
        """
        if message.prefix == SIGHTING_PREFIX and message.transactional and self._is_signed(xid, message):
            self._sighted(commit_lsn, decoded(self._session.catalog(), message))
        if message.prefix != DDL_PREFIX:
            return None
        if not message.transactional or not self._is_signed(xid, message):
            self._tell(xid, message)
            return None
        return decoded(self._session.catalog(), message)

    def removal(self, xid: int, message: WireMessage) -> bytes | None:
        """The content of a message that tells of rows which are gone with a partition; None of any other."""
        if message.prefix != REMOVAL_PREFIX or not message.transactional or not self._is_signed(xid, message):
            return None
        return decoded(self._session.catalog(), message)

    def _is_signed(self, xid: int, message: WireMessage) -> bool:
        connection = self._session.catalog()
        if self._can_verify is None:
            # A function of a stranger's is not even called: it would run with our rights.
            self._can_verify = can_verify(ddl_objects(connection))
        if not self._can_verify:
            return False
        return is_signed(connection, xid, message)

    def _tell(self, xid: int, message: WireMessage) -> None:
        self._refused_count += 1
        if self._refused_count > _MOST_TOLD:
            return
        what = f"in transaction {xid}" if message.transactional else "outside any transaction"
        _logger.warning(
            "A message with the prefix %s %s (LSN %X/%X) was passed over: any login can send one, so only what "
            "parallel_apply.send_ddl sends counts as DDL. Hint: parallel-apply install-ddl-capture, and send DDL with "
            "SELECT parallel_apply.send_ddl('…').%s",
            DDL_PREFIX,
            what,
            message.lsn >> 32,
            message.lsn & 0xFFFFFFFF,
            " Further ones of this read are not reported." if self._refused_count == _MOST_TOLD else "",
        )
