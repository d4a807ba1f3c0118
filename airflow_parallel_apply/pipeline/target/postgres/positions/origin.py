"""Replication origins, by which a reader of the target's WAL tells applied changes from local ones.

One session at a time holds an origin, and channels commit side by side: so each channel has one, and what moves all
positions carries that of channel 0. A commit holds it inside its transaction and releases it afterwards, so nothing
else that the session does carries it. Whoever takes a channel has ended the sessions of its former holders, which
released it thereby. A pooler may hand on the session of a client that was killed after its commit; the next client
releases the origin first.

Names are those of the server, not of a database: `parallel_apply:<oid of the database>:<pipeline>:<channel>`. They are
made where a generation begins, all or none: none where the role may not call the functions, or the server has no room.
Then commits carry none, and `check` says so. A database's origins outlive it; whoever makes some removes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from time import monotonic, sleep
from typing import Final

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side, new_finding
from airflow_parallel_apply.pipeline.model.origin import CommitOrigin
from airflow_parallel_apply.pipeline.model.removal import Leftover, Removal
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.quoting import quoted

_PREFIX: Final = (
    "('parallel_apply:' || (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()) || {})"
)
_IS_ORPHAN: Final = sql.SQL(
    "(starts_with(o.roname, 'parallel_apply:') AND NOT EXISTS "
    "(SELECT FROM pg_catalog.pg_database d WHERE d.oid::text = split_part(o.roname, ':', 2)))"
)
_ALL_CHANNELS: Final = 0
"""The channel whose origin a unit of all channels carries."""

_HOLDER: Final = re.compile(r"\d+$")
"""The process at the end of what the server says, in any language."""
_PATIENCE_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class _Closed:
    """The limits that keep a role, or a server, from having more origins."""

    functions: list[str]
    setting: str
    room: int
    others: int

    def has_room(self, channels: int) -> bool:
        return self.others + channels <= self.room


class CommitOrigins:
    """Marks transactions of one session. Each stands in a block of `letting_go`, which ends behind its commit."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: tuple[Connection, Sequence[int]] | None = None
        self._holding: Connection | None = None
        self._last: Connection | None = None

    @contextmanager
    def letting_go(self) -> Iterator[None]:
        """Around a transaction. What it does is done, whatever becomes of the session."""
        try:
            yield
        finally:
            connection, self._holding = self._holding, None
            if connection is not None:
                self._let_go(connection)

    def mark(self, connection: Connection, channel: int | None, origin: CommitOrigin) -> None:
        """Have the open transaction carry the origin, if the channel has one. Errors: `Unavailable` where a session
        that is none of this pipeline's holds it; psycopg's own.
        """
        chosen = _ALL_CHANNELS if channel is None else channel
        if chosen in self._usable(connection):
            try:
                self._hold(connection, chosen)
            except psycopg.errors.ObjectInUse as error:
                raise _held(error) from error
            self._set(connection, origin)

    def mark_shared(self, connection: Connection, turn: int, origin: CommitOrigin) -> None:
        """The same with any origin of the pipeline, for transactions of which more may come at once than it has: right
        before the commit. `turn`: where to begin to look. Errors: as `mark`, where none comes free for some seconds.
        """
        usable = self._usable(connection)
        deadline = monotonic() + _PATIENCE_SECONDS
        for step in count(turn) if usable else ():
            try:
                with connection.transaction():
                    self._hold(connection, usable[step % len(usable)])
            except psycopg.errors.ObjectInUse as error:
                if monotonic() > deadline:
                    raise _held(error) from error
                sleep(_PAUSE_SECONDS)
            else:
                self._set(connection, origin)
                return

    def _usable(self, connection: Connection) -> Sequence[int]:
        """The channels that have one; none where the role may not use them. What a generation began with stays so."""
        if self._known is None or self._known[0] is not connection:
            may = not _closed(connection, self._session).functions
            self._known = connection, _there(connection, self._session) if may else ()
        return self._known[1]

    def _hold(self, connection: Connection, channel: int) -> None:
        query = _query("hold", self._session)
        if connection is self._last:
            connection.execute(query, {"channel": channel})
        else:
            try:
                with connection.transaction():
                    connection.execute(query, {"channel": channel})
            except psycopg.errors.ObjectNotInPrerequisiteState:
                connection.execute(_query("let_go", self._session))
                connection.execute(query, {"channel": channel})
            self._last = connection
        self._holding = connection

    def _set(self, connection: Connection, origin: CommitOrigin) -> None:
        values = {"offset": origin.offset, "commit_time": origin.commit_time}
        connection.execute(_query("mark", self._session), values)

    def _let_go(self, connection: Connection) -> None:
        try:
            connection.execute(_query("let_go", self._session))
        except psycopg.Error:
            # Then the session's end does it.
            connection.close()


def settle_origins(session: Session, channels: int) -> None:
    """Give each channel an origin, and no more, if the role may and the server has room for all of them; else leave the
    pipeline without. No session commits for the pipeline meanwhile. Errors: the pipeline's.
    """
    with session.transaction("settle replication origins") as connection:
        closed = _closed(connection, session)
        there = _there(connection, session)
        wanted = range(channels if closed.has_room(channels) else 0)
        if closed.functions or there == [*wanted]:
            return
        connection.execute(statement("schema", "lock"))
        there = _there(connection, session)
        # Somebody else may be removing them, too.
        with suppress(psycopg.errors.UndefinedObject, psycopg.errors.ObjectInUse), connection.transaction():
            connection.execute(_query("drop_orphans", session))
        try:
            _drop(connection, session, [channel for channel in there if channel not in wanted])
        except psycopg.errors.ObjectInUse as error:
            raise _held(error) from error
        made = [channel for channel in wanted if channel not in there]
        for channel in made:
            connection.execute(_query("create", session), {"channel": channel})
    with session.transaction("settle replication origins") as connection:
        try:
            with connection.transaction():
                _keep_room(connection, session, made)
        except psycopg.errors.ConfigurationLimitExceeded:
            _drop(connection, session, wanted)


def origin_findings(connection: Connection, session: Session, channels: int, role: str) -> Iterator[Finding]:
    """Say what keeps commits from carrying an origin. Errors: psycopg's own."""
    closed = _closed(connection, session)
    finding = partial(new_finding, Side.TARGET, "replication origin", severity=Severity.WARNING)
    means = "whoever reads this server's WAL cannot tell applied changes from others"
    if closed.functions:
        names = ", ".join(closed.functions)
        yield finding(
            f"commits carry no replication origin, since role {role} may not call {names}: {means}",
            f"GRANT EXECUTE ON FUNCTION {names} TO {quoted(role)}",
            note="As a superuser, in the target's database. Only readers of the target's own changes need it.",
        )
    elif not closed.has_room(channels):
        yield finding(
            f"commits carry no replication origin: {channels} channels need as many, the server has room for "
            f"{closed.room} ({closed.setting}), and others have {closed.others}: {means}",
            f"ALTER SYSTEM SET {closed.setting} = {closed.others + channels}",
            note="Then restart the server. Only readers of the target's own changes need it.",
        )


def drop_origins(connection: Connection, session: Session) -> Removal:
    """Remove those of the pipeline, in the caller's transaction. Errors: psycopg's own."""
    there = _there(connection, session)
    if not there:
        return Removal()
    try:
        with connection.transaction():
            _drop(connection, session, there)
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ObjectInUse) as error:
        what = f"{len(there)} replication origins of pipeline {session.pipeline}: {error.diag.message_primary}"
        left = Leftover(side=Side.TARGET, what=what, command=drop_origins_command(session.pipeline))
        return Removal(left=(left,))
    return Removal(done=(f"dropped {len(there)} replication origins at the target",))


def drop_origins_command(pipeline: str) -> str:
    """Return the statement that a person runs instead of `drop_origins`."""
    return (
        "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE starts_with(roname, "
        f"{_prefix(pipeline).as_string(None)})"
    )


def _keep_room(connection: Connection, session: Session, channels: Sequence[int]) -> None:
    """Take and release origins: who held one once keeps its place among those that the server can have active."""
    for channel in channels:
        connection.execute(_query("hold", session), {"channel": channel})
        connection.execute(_query("let_go", session))


def _drop(connection: Connection, session: Session, channels: Sequence[int]) -> None:
    for channel in channels:
        connection.execute(_query("drop", session), {"channel": channel})


def _closed(connection: Connection, session: Session) -> _Closed:
    found = connection.cursor(row_factory=class_row(_Closed)).execute(_query("closed", session)).fetchone()
    return found or _Closed(functions=[], setting="", room=0, others=0)


def _there(connection: Connection, session: Session) -> list[int]:
    return [channel for (channel,) in connection.execute(_query("there", session))]


def _query(name: str, session: Session) -> sql.Composed:
    return statement("origin", name, prefix=_prefix(session.pipeline), is_orphan=_IS_ORPHAN)


def _prefix(pipeline: str) -> sql.Composed:
    return sql.SQL(_PREFIX).format(sql.Literal(f":{pipeline}:"))


def _held(error: psycopg.errors.ObjectInUse) -> Unavailable:
    what = error.diag.message_primary or ""
    holder = _HOLDER.search(what)
    end = f"SELECT pg_terminate_backend({holder[0]})" if holder else "pg_terminate_backend"
    return Unavailable(
        f"another session holds the pipeline's replication origin: {what}",
        hint=f"It is not this pipeline's, or a pooler keeps it for a client that was killed. End it at the target "
        f"({end}); the run then continues by itself.",
    )
