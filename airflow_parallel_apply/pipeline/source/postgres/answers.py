"""Keeps what a server's catalog answered, for as long as asking again could bring nothing else: `Answers`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

Answer = TypeVar("Answer")


class Answers:
    """Keeps the answers of one session. Not thread-safe.

    A snapshot says which transactions are over, and which version of the catalog's rows a session sees is decided by
    that alone. So under an equal snapshot a question has the answer that it had. The snapshot is taken before the
    question is asked: what ends in between makes the next one differ. Questions are about catalogs, and nothing else:
    slots, settings, statistics and the ends of the WAL change without a transaction.
    """

    def __init__(self) -> None:
        self._connection: psycopg.Connection[Any] | None = None
        self._snapshot: str | None = None
        self._answers: dict[Hashable, Any] = {}

    def of(
        self, connection: psycopg.Connection[Any], question: Hashable, ask: Callable[[psycopg.Connection[Any]], Answer]
    ) -> Answer:
        """Return what `ask` says, or has said. A transaction sees changes of its own, so what it asks is asked. Errors:
        those of `ask`; psycopg's own.
        """
        if connection.info.transaction_status != TransactionStatus.IDLE:
            return ask(connection)
        found = connection.execute("SELECT pg_catalog.pg_current_snapshot()::text").fetchone()
        snapshot = None if found is None else str(found[0])
        # Another session may have another server behind it.
        if connection is not self._connection or snapshot != self._snapshot:
            self._connection, self._snapshot, self._answers = connection, snapshot, {}
        if question not in self._answers:
            self._answers[question] = ask(connection)
        answer: Answer = self._answers[question]
        return answer

    def forget(self) -> None:
        """Ask again, whatever the snapshot is: what waits for a standby is in no snapshot, but asking waits for its
        locks.
        """
        self._snapshot = None
