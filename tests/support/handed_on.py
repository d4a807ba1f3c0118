"""Sessions that are handed on from one caller to the next, as a pooler in session mode does (`server_reset_query =
DISCARD ALL`). A new session reads the catalog anew, and a run opens some twenty: that is half of what servers do for
tests.

A session is handed on only where a new one would be no other: the role is the superuser, and settings of roles and of
the database, the configuration and login triggers are those that it began with. It is as new then: `DISCARD ALL`
leaves a replication origin alone, and one that holds one is closed. Whoever is to meet a new session all the same uses
the fixture `new_sessions`. Processes that tests start, servers of a test's own, other roles, whatever goes through a
proxy, and the hunt connect as anybody does.
"""

from __future__ import annotations

import select
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

import psycopg
import pytest
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row

_USER: Final = "postgres"
_OF_ANY: Final = ("application_name", "connect_timeout")
_OF_SOCKETS: Final = ("keepalives", "tcp_user_timeout")
"""On loopback they change nothing."""

_OF_CONNECTIONS: Final = ("autocommit", "prepare_threshold", "context", "row_factory", "cursor_factory")

_BEGINNING: Final = """
SELECT ROW(pg_conf_load_time(), (SELECT array_agg(s::text) FROM pg_db_role_setting s),
    (SELECT xmin FROM pg_database WHERE datname = current_database()),
    (SELECT xmin FROM pg_authid WHERE rolname = session_user),
    (SELECT array_agg(ROW(e.xmin, e.oid)::text) FROM pg_event_trigger e WHERE evtevent = 'login'))::text,
    set_config('application_name', %s, false)
"""
_END: Final = "SELECT pg_replication_origin_session_is_setup(), set_config('application_name', '', false)"

Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class _Session:
    link: pq.PGconn
    beginning: str


@dataclass(kw_only=True)
class _Resting:
    """Sessions that nobody uses now, of servers at these ports."""

    ports: set[str] = field(default_factory=set)
    sessions: dict[Key, list[_Session]] = field(default_factory=lambda: defaultdict(list))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def key(self, given: dict[str, Any]) -> Key | None:
        """None for a connection that is nobody else's."""
        if str(given.get("port")) not in self.ports or given.get("user") != _USER or "replication" in given:
            return None
        return tuple(
            sorted(
                (name, str(value))
                for name, value in given.items()
                if name not in _OF_ANY and not name.startswith(_OF_SOCKETS)
            )
        )

    def take(self, key: Key) -> _Session | None:
        with self.lock:
            return self.sessions[key].pop() if self.sessions[key] else None

    def give(self, key: Key, session: _Session) -> None:
        with self.lock:
            self.sessions[key].append(session)

    def close(self, **parameters: str) -> None:
        """All that were opened with these parameters."""
        with self.lock:
            for key in [one for one in self.sessions if parameters.items() <= dict(one).items()]:
                for session in self.sessions.pop(key):
                    session.link.finish()


_resting: Final = _Resting()
_nobody: Final = pq.PGconn.connect_start(b"port=1")
_nobody.finish()


class _Connection(psycopg.Connection[Any]):
    """To `close` one gives its session back."""

    handed_on: tuple[Key, str] | None = None

    @classmethod
    def connect(cls, conninfo: str = "", **options: Any) -> Self:
        parameters = {name: value for name, value in options.items() if name not in _OF_CONNECTIONS}
        given = conninfo_to_dict(conninfo, **parameters)
        key = None if "context" in options else _resting.key(given)
        if key is None:
            return super().connect(conninfo, **options)
        name = given.get("application_name") or ""
        while (session := _resting.take(key)) is not None:
            found = cls(session.link)
            with suppress(psycopg.OperationalError):
                if _is_alive(session.link) and found._begin(name) == session.beginning:
                    found.handed_on = (key, session.beginning)
                    return found._with(**options)
            session.link.finish()
        found = super().connect(conninfo, **parameters)
        found.handed_on = (key, found._begin(name))
        return found._with(**options)

    def close(self) -> None:
        """As psycopg's; a session in a transaction, or with an origin, is ended."""
        if self.handed_on is not None and not self.closed and self._is_as_new():
            key, beginning = self.handed_on
            session, self.pgconn, self._closed = _Session(link=self.pgconn, beginning=beginning), _nobody, True
            _resting.give(key, session)
        super().close()

    def _begin(self, name: str) -> str:
        """Bear the name. What a session that begins now has from its server. Errors: psycopg's own."""
        self.autocommit, self.prepare_threshold = True, None
        found = self.execute(_BEGINNING, [name]).fetchone()
        return "" if found is None else str(found[0])

    def _with(
        self,
        *,
        autocommit: bool = False,
        prepare_threshold: int | None = 5,
        row_factory: Any = None,
        cursor_factory: Any = None,
        **_: Any,
    ) -> Self:
        self.autocommit, self.prepare_threshold = autocommit, prepare_threshold
        self.row_factory = row_factory or self.row_factory
        self.cursor_factory = cursor_factory or self.cursor_factory
        return self

    def _is_as_new(self) -> bool:
        if self.info.transaction_status != pq.TransactionStatus.IDLE or not _is_alive(self.pgconn):
            return False
        self.autocommit, self.prepare_threshold = True, None
        self.row_factory = tuple_row
        with suppress(psycopg.Error):
            self.execute("DISCARD ALL")
            return self.execute(_END).fetchone() == (False, "")
        return False


def _is_alive(link: pq.PGconn) -> bool:
    """True unless its server has said anything since, such as that it ends the session."""
    poll = select.poll()
    poll.register(link.socket, select.POLLIN)
    return link.status == pq.ConnStatus.OK and not poll.poll(0)


@contextmanager
def handed_on(port: int) -> Iterator[None]:
    """Hand on the sessions of the server at this port, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg, "connect", _Connection.connect)
        _resting.ports.add(str(port))
        try:
            yield
        finally:
            _resting.ports.remove(str(port))
            _resting.close(port=str(port))


@contextmanager
def new_sessions() -> Iterator[None]:
    """Hand on nothing. None rests either: whatever emptied a database for its next test was in it."""
    ports, _resting.ports = _resting.ports, set()
    _resting.close()
    try:
        yield
    finally:
        _resting.ports = ports


def end_resting(database: str) -> None:
    """Close those of a database of this name."""
    _resting.close(dbname=database)
