"""The logical slot of a pipeline: what it holds, and advancing it to what is durable in the log."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final

import psycopg
import pyarrow as pa
from psycopg import sql

from airflow_parallel_apply.pipeline.errors import START_ANEW, SourceError, SourceInUse, Unavailable
from airflow_parallel_apply.pipeline.log.protocol import LogPlace, ResumePoint
from airflow_parallel_apply.pipeline.model.gone_rows import REMOVAL_PREFIX
from airflow_parallel_apply.pipeline.source.postgres.ddl.ddl_messages import DDL_PREFIX
from airflow_parallel_apply.pipeline.source.postgres.lsn import inserted_lsn, lsn_text
from airflow_parallel_apply.pipeline.source.postgres.session import Session, statement
from airflow_parallel_apply.pipeline.source.postgres.slot.resume import behind, require_same, went_back
from airflow_parallel_apply.pipeline.source.postgres.wire.messages import parse_message

PLUGIN: Final = "pgoutput"
MARK_PREFIX: Final = "parallel_apply.mark"
"""Prefix of messages without content: only their transaction matters."""
COPIED_PREFIX: Final = "parallel_apply.copied"
"""Prefix of the messages that name copies. They stand in the WAL by themselves, where they were written."""
_TELLING: Final = (DDL_PREFIX, REMOVAL_PREFIX)
"""Prefixes of messages that are changes: the log keeps what they tell."""
_FIRST_WITH_SWITCHES: Final = 180000
"""The version from which on a slot's TWO_PHASE can be altered."""
_MOST_CHANGES: Final = 2**31 - 1
_REREAD_FREE_BYTES: Final = 16 * 2**20
_BYTES_PER_CHANGE: Final = 160
"""WAL of a small row's change, about."""
_IDLE_WAL_BYTES: Final = 256 * 2**20
"""WAL that a slot may hold back while none of the followed tables changes."""
_LOST_WAL: Final = "lost WAL that it still needed"
_GIVEN_UP: Final = {
    "wal_removed": (_LOST_WAL, "max_slot_wal_keep_size was too small for the time without a run"),
    "idle_timeout": (_LOST_WAL, "idle_replication_slot_timeout was too small for the time without a run"),
    "rows_removed": (
        "lost rows of the catalog that it still needed",
        "the server was a standby without hot_standby_feedback = on",
    ),
    "wal_level_insufficient": (
        "was given up",
        "the server was a standby while wal_level of its primary was not logical",
    ),
}
"""The state of a slot that was given up, and why, by the server's word (`invalidation_reason`)."""
_FIRST_LOOK: Final = 1
_SECOND_LOOK: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """The slot's row in `pg_replication_slots`."""

    plugin: str | None
    database: str | None
    is_elsewhere: bool
    """True if it is another database's than the session's."""
    active_pid: int | None
    wal_status: str | None
    is_two_phase: bool
    confirmed_lsn: int
    reread_bytes: int
    """WAL below the confirmed LSN that the server reads again at each peek: from the last standby snapshot that it
    found on the way, which it writes every 15 seconds.
    """
    given_up: str | None = None
    """The server's word for why it gave the slot up; None, too, where it tells none."""

    def read_changes(self, max_changes: int) -> int:
        """How many changes to read at once: as asked, but not fewer than are read again to get there. Otherwise the
        time for a backlog that was written fast would grow with its square.
        """
        if self.reread_bytes < _REREAD_FREE_BYTES:
            return max_changes
        return max(max_changes, self.reread_bytes // _BYTES_PER_CHANGE)


class Slot:
    """One slot, by name, through a session. Its methods raise the drivers' errors."""

    def __init__(self, session: Session, *, name: str, publication: str) -> None:
        self._session = session
        self.name = name
        self._publication = publication

    def state(self) -> SlotState | None:
        """None when there is no such slot."""
        found = self._session.catalog().execute(statement("slot"), {"slot": self.name}).fetchone()
        if found is None:
            return None
        plugin, database, is_elsewhere, active_pid, wal_status, is_two_phase, *rest = found
        confirmed_lsn, reread_bytes, given_up = rest
        return SlotState(
            plugin=plugin,
            database=database,
            is_elsewhere=is_elsewhere,
            active_pid=active_pid,
            wal_status=wal_status,
            is_two_phase=is_two_phase,
            confirmed_lsn=confirmed_lsn,
            reread_bytes=reread_bytes,
            given_up=given_up,
        )

    def checked(self, log: Callable[[], LogPlace]) -> SlotState:
        """The state, if the slot can go on from what the log holds. `SourceError`: changes are missing for good.

        `log`: reads what that is; after the slot, which never goes beyond, while others capture.
        """
        state = self.state()
        if state is None:
            raise self._broken(
                "is gone",
                "it was dropped, or the server was replaced; if the connection leads to another server than the log's, "
                "correct that instead",
            )
        if state.is_elsewhere:
            raise SourceError(
                f"slot {self.name} at {self._session.place} is that of the database {state.database}",
                op="capture",
                hint="Does the connection lead to the database that the pipeline's log comes from?",
            )
        if state.plugin != PLUGIN:
            raise self._broken(f"uses the plugin {state.plugin}, not {PLUGIN}", "somebody else made it")
        if state.wal_status == "lost":
            raise self._broken(*_GIVEN_UP.get(state.given_up or "", _GIVEN_UP["wal_removed"]))
        if state.is_two_phase:
            raise self._switched()
        known = log()
        if state.confirmed_lsn > known.release_offset and state.confirmed_lsn not in known.released:
            raise self._broken(
                f"stands at {lsn_text(state.confirmed_lsn)}, above what the log has captured, "
                f"{lsn_text(known.release_offset)}",
                "it was recreated, or advanced by another reader",
            )
        return state

    def drop(self) -> None:
        """Remove it."""
        self._session.catalog().execute("SELECT pg_drop_replication_slot(%s)", [self.name])

    def advance(self, log: LogPlace) -> SlotState:
        """Let the server forget what the log has, but for the last transaction: see `resume`. Does nothing when the
        slot is there already. Errors: as `checked`; `SourceError` where the server's WAL ends below.
        """
        state = self.checked(lambda: log)
        if state.confirmed_lsn < log.release_offset:
            if log.resume is not None and self.flushed_lsn() <= log.release_offset:
                raise went_back(log.resume, "has less WAL", place=self._session.place)
            self._session.catalog().execute(
                "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", [self.name, lsn_text(log.release_offset)]
            )
            state = self.checked(lambda: log)
        return state

    def peek(self, until_lsn: int, max_changes: int, *, batch_bytes: int) -> Generator[pa.BinaryArray, None, None]:
        """Whole transactions: all that commit below `until_lsn`, or fewer once their messages reach `max_changes`."""
        self._require_free()
        query = sql.SQL(statement("peek")).format(
            slot=sql.Literal(self.name),
            until=sql.Literal(lsn_text(until_lsn)),
            count=sql.Literal(min(max_changes, _MOST_CHANGES)),
            publication=sql.Literal(self._publication),
        )
        yield from self._session.stream(query.as_string(self._session.catalog()), batch_bytes=batch_bytes)

    def named_copies(self, until_lsn: int) -> frozenset[str]:
        """The ids of copies that messages of `mark_copy` name which end at or below an LSN."""
        self._require_free()
        query = sql.SQL(statement("named_copies")).format(
            slot=sql.Literal(self.name),
            until=sql.Literal(lsn_text(until_lsn)),
            publication=sql.Literal(self._publication),
            prefix=sql.Literal(COPIED_PREFIX.encode() + b"\0"),
        )
        messages = self._session.catalog().execute(query).fetchall()
        return frozenset(parse_message(message).content.decode() for (message,) in messages)

    def _require_free(self) -> None:
        state = self.state()
        if state is not None and state.active_pid is not None:
            raise SourceInUse(
                f"slot {self.name} at {self._session.place} is in use by process {state.active_pid}",
                op="capture",
                hint="Another capture reads it, or one that died a moment ago: it comes free by itself, or by "
                f"SELECT pg_terminate_backend({state.active_pid}).",
            )

    def has_changes(self, log: LogPlace) -> bool:
        """True if a followed change waits behind what the log has. Looks at one transaction; if that is not ours, at
        some thousands. The slot stands where `advance` left it.

        Also true if there is only a long run of others' messages, or if others wrote so much that the slot should let
        go of it: a capture then advances it. `SourceError` where the source lacks what the log has.
        """
        state = self.state()
        resume = log.resume if state is None else log.resume_at(state.confirmed_lsn)
        known = 0 if resume is None else resume.message_count
        if state is not None and self.flushed_lsn() - state.confirmed_lsn > _IDLE_WAL_BYTES and self._may_mark():
            return True
        for count in (known + _FIRST_LOOK, known + _SECOND_LOOK):
            seen, has_change = self._pending(resume, count)
            if has_change or seen < count:
                return has_change
        return True

    def _pending(self, resume: ResumePoint | None, count: int) -> tuple[int, bool]:
        """How many messages the slot holds, up to `count`, and whether a followed change that the log lacks is among
        them. `SourceError` where the source lacks what the log has.
        """
        query = sql.SQL(statement("pending")).format(
            slot=sql.Literal(self.name),
            count=sql.Literal(count),
            publication=sql.Literal(self._publication),
            prefixes=sql.SQL(", ").join(sql.Literal(f"{prefix}\0".encode()) for prefix in _TELLING),
            known=sql.Literal("" if resume is None or resume.xid is None else str(resume.xid)),
        )
        seen, has_change, first = self._session.catalog().execute(query).fetchone() or (0, False, None)
        if resume is not None:
            require_same(resume, first, place=self._session.place)
        return seen, bool(has_change)

    def require_resumable(self, log: LogPlace) -> None:
        """Check what `advance` and a read would check, and advance nothing. A slot that is being read is not checked:
        its reader does that.

        Errors: `SourceError` where the source lacks what the log has.
        """
        state = self.checked(lambda: log)
        resume = log.resume_at(state.confirmed_lsn)
        if resume is None or resume.xid is None or state.active_pid is not None:
            return
        if self.flushed_lsn() <= resume.offset:
            raise went_back(resume, "has less WAL", place=self._session.place)
        query = sql.SQL(statement("resumable")).format(
            slot=sql.Literal(self.name),
            until=sql.Literal(lsn_text(resume.offset + 1)),
            publication=sql.Literal(self._publication),
            lsn=sql.Literal(resume.offset.to_bytes(8)),
        )
        with suppress(psycopg.errors.ObjectInUse):
            found = self._session.catalog().execute(query).fetchone()
            require_same(resume, None if found is None else found[0], place=self._session.place)

    def is_kept_by_standbys(self) -> bool:
        """True if it has FAILOVER, which PostgreSQL 17 and later know."""
        found = self._session.catalog().execute(
            "SELECT to_jsonb(s) ->> 'failover' FROM pg_catalog.pg_replication_slots s WHERE slot_name = %s", [self.name]
        )
        return (found.fetchone() or (None,))[0] == "true"

    def keep_by_standbys(self) -> None:
        """Give it FAILOVER, of PostgreSQL 17 and later."""
        with closing(self._session.replication()) as connection:
            connection.execute(sql.SQL("ALTER_REPLICATION_SLOT {} (FAILOVER true)").format(sql.Identifier(self.name)))

    def mark(self) -> None:
        """Write a transaction of our own: nothing else that the slot sends may come for long. What others wrote before
        it can be let go of then; and once the log has read it, a source that went back behind what was looked at before
        lacks it, see `resume`. Does nothing where we may not.
        """
        if not self._may_mark():
            return
        connection = self._session.catalog()
        with connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = 'local'")
            connection.execute("SELECT pg_logical_emit_message(true, %s, '')", [MARK_PREFIX])

    def mark_copy(self, recopy_id: str) -> int:
        """Write a message that names a copy, and a mark, behind the moment that the copy shows: a source that went back
        to before that moment lacks both. Where the message ends; 0 where we may not write it.
        """
        if not self._may_mark():
            return 0
        query = "SELECT (pg_logical_emit_message(false, %s, %s) - '0/0')::bigint"
        ((end,),) = self._session.catalog().execute(query, [COPIED_PREFIX, recopy_id]).fetchall()
        self.mark()
        return int(end)

    def _may_mark(self) -> bool:
        found = self._session.catalog().execute(
            "SELECT bool_and(has_function_privilege(oid, 'EXECUTE')) FROM pg_catalog.pg_proc "
            "WHERE proname = 'pg_logical_emit_message' AND proargtypes[2] = 'text'::regtype"
        )
        return bool((found.fetchone() or (False,))[0])

    def shorten(self) -> None:
        """Write a standby snapshot, if we may (PostgreSQL 16, a right that superusers have): once the slot is past it,
        nothing below is read again.
        """
        connection = self._session.catalog()
        may = connection.execute(
            "SELECT has_function_privilege(oid, 'EXECUTE') FROM pg_proc WHERE proname = 'pg_log_standby_snapshot'"
        ).fetchone()
        if may is not None and may[0]:
            connection.execute("SELECT pg_log_standby_snapshot()")

    def reached_lsn(self, log: LogPlace, *, op: str) -> int:
        """The flushed LSN, which has come to where the log has read. Errors: `Unavailable` below that, or there with
        changes that the log lacks; `SourceError` if the source lacks what the log has.
        """
        flushed = self.flushed_lsn()
        if flushed <= log.captured_offset:
            _, has_change = self._pending(log.resume_at(self.advance(log).confirmed_lsn), _MOST_CHANGES)
            if flushed == log.captured_offset and not has_change:
                return flushed
            raise behind(flushed, f"the log had read it up to {lsn_text(log.captured_offset)}", op=op)
        return flushed

    def flushed_lsn(self) -> int:
        """Up to where the server's WAL is on disk, which is as far as a slot can be read."""
        found = self._session.catalog().execute("SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint").fetchone()
        if found is None:
            raise Unavailable("the source did not tell its LSN", op="capture")
        return int(found[0])

    def inserted_lsn(self) -> int:
        """See `lsn.inserted_lsn`."""
        return inserted_lsn(self._session.catalog())

    def _switched(self) -> SourceError:
        if self._session.catalog().info.server_version < _FIRST_WITH_SWITCHES:
            return self._broken("was made for two-phase commits", "somebody else made it")
        alter = sql.SQL("ALTER_REPLICATION_SLOT {} (TWO_PHASE false)").format(sql.Identifier(self.name)).as_string()
        return SourceError(
            f"slot {self.name} at {self._session.place} was switched to TWO_PHASE: it sends transactions when they are "
            "prepared, and the pipeline applies them once they are committed",
            op="capture",
            hint=f"Run {alter} at the source, in a session with replication=database in its connection string; then "
            "run again. Nothing was read meanwhile, so nothing is missing.",
        )

    def _broken(self, what: str, why: str) -> SourceError:
        return SourceError(
            f"slot {self.name} at {self._session.place} {what}: changes are missing",
            op="capture",
            hint=f"Probably {why}. {START_ANEW}",
        )
