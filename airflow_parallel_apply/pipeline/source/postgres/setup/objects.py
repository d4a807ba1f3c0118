"""The objects of one pipeline at a PostgreSQL source, which belong together: server, publication, slot and log.

The publication's comment is the record of how far a first run came, since it changes in transactions::

    publication, "log <id>, being prepared" ─▶ slot ─▶ copy ─▶ log <id>, captured to the slot's LSN ─▶ "log <id>"

Nothing is captured before the last step. So a run that finds "being prepared" drops the slot and begins anew, with the
log's id if there is one already; and a slot whose comment names a log is never touched, be that log here or elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.errors import START_ANEW, ConfigurationError, LogError, SourceError, Unavailable
from airflow_parallel_apply.pipeline.log.beginning import holds_nothing_captured
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.source.postgres.proof.observed import observe
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import Registration
from airflow_parallel_apply.pipeline.source.postgres.session import Session, statement
from airflow_parallel_apply.pipeline.source.postgres.slot.slot import Slot
from airflow_parallel_apply.pipeline.source.protocol import OpenLog, SourceChanged
from airflow_parallel_apply.postgres.quoting import quoted

_RECORD: Final = "parallel_apply: log {}"
_SAME_NAME: Final = {
    "database": " A database that was renamed: give it the name {} again.",
    "slot": " A pipeline that shares this log shares its slot, too: slot={}.",
}
_COMMENT: Final = re.compile(r"parallel_apply: log ([0-9a-f]{32})(, being prepared)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server and database that this is, and who we are there."""

    system_identifier: str
    database: str
    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The record in a publication's comment."""

    log_id: str
    is_ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineObjects:
    """The objects of one pipeline at its source. `log`: opens its log, which is at `log_url`. The methods raise the
    drivers' errors, too.
    """

    session: Session
    slot: Slot
    publication: str
    pipeline: str
    log_url: str
    log: OpenLog

    def server(self) -> Server:
        """Errors: `Unavailable`."""
        found = self._catalog().execute(statement("server")).fetchone()
        if found is None:
            raise Unavailable(f"the source {self.session.place} did not describe itself", op="prepare")
        system_identifier, database, user = found
        return Server(system_identifier=system_identifier, database=database, user=user)

    def is_first_run(self) -> bool:
        """True if publication and slot are still to be made, or to be made anew."""
        match = _COMMENT.fullmatch(self._commented() or "")
        return match is None or match[2] is not None

    def record(self, server: Server) -> Record | None:
        """None without a publication. Errors: `SourceError` when it, or a slot without it, is not ours;
        `ConfigurationError` when the slot is that of another database, since its name is the server's.
        """
        slot = self.slot.state()
        if slot is not None and slot.is_elsewhere:
            raise ConfigurationError(
                f"slot {self.slot.name} at {self.session.place} is that of a pipeline in the database {slot.database}",
                op="prepare",
                pipeline=self.pipeline,
                hint="Slot names are unique on a server: give this pipeline another slot, or another name.",
            )
        found = self._commented()
        if found is None:
            log = self.log()
            if log is not None:
                self._require_log_of(log, server)
                raise self._renamed(log) or self.missing(f"publication {self.publication} is gone")
            if slot is not None:
                raise self.missing(f"publication {self.publication} is gone, though slot {self.slot.name} is there")
            return None
        match = _COMMENT.fullmatch(found)
        if match is None:
            raise self._not_ours(server)
        return Record(log_id=match[1], is_ready=match[2] is None)

    def set_record(self, record: Record) -> None:
        """Write it; with a transaction of the catalog session, in that."""
        self._catalog().execute(self._recording(record))

    def is_unaltered(self, registration: str | None) -> bool:
        """True if nobody but us has altered the publication since its tables were registered so in the log."""
        known = () if registration is None else Registration.from_text(registration).tables
        return observe(self._catalog(), self.publication).is_unaltered(known)

    def require_unaltered(self, registration: str | None) -> None:
        """Before we alter it, in one transaction with the record: somebody else's alteration would pass for ours then.
        Errors: `SourceChanged`.
        """
        if not self.is_unaltered(registration):
            raise SourceChanged(
                f"publication {self.publication} was altered just now",
                op="prepare",
                pipeline=self.pipeline,
                hint="It is tried again by itself; let migrations end first.",
            )

    def ready_record(self) -> Record | None:
        """As `record`, of a server that may be another one than the log's. None, too, before the first run's end."""
        match = _COMMENT.fullmatch(self._commented() or "")
        return None if match is None or match[2] is not None else Record(log_id=match[1], is_ready=True)

    def require_log(self, server: Server, record: Record) -> None:
        """That the log is that of the record, this database, slot and publication, of whatever server. `LogError`."""
        log = self._opened(record)
        self._require_same("log", log.identity.log_id, record.log_id)
        self.require_same_names(log, server)

    def require_same_names(self, log: LogReader, server: Server) -> None:
        """That the log is that of this database, slot and publication. `LogError`."""
        identity = log.identity
        self._require_same("database", identity.database, server.database)
        self._require_same("slot", identity.stream, self.slot.name)
        self._require_same("publication", identity.selection, self.publication)

    def known_log(self, server: Server, record: Record) -> LogReader:
        """The log of a pipeline that has one. Errors: `SourceError`, `LogError` if log, server and slot do not fit."""
        log = self._opened(record)
        self._require_same("log", log.identity.log_id, record.log_id)
        self._require_log_of(log, server)
        self.slot.checked(lambda: log.state().place)
        return log

    def require_new_log(self, server: Server, record: Record | None) -> None:
        """That there is no log, or that which an earlier attempt made. `LogError` when the log is another's."""
        log = self.log()
        if log is None:
            return
        if record is not None:
            self._require_same("log", log.identity.log_id, record.log_id)
        self._require_log_of(log, server)
        if not holds_nothing_captured(log):
            raise self.missing(f"slot {self.slot.name} of log {log.identity.log_id} was made anew")

    def missing(self, what: str) -> SourceError:
        """Changes that nobody has any more."""
        return SourceError(
            f"{what}: changes are missing",
            op="prepare",
            pipeline=self.pipeline,
            hint=START_ANEW,
        )

    def _renamed(self, log: LogReader) -> SourceError | None:
        """None where no publication bears the log's record under another name."""
        found = (
            self._catalog()
            .execute(
                "SELECT pubname::text FROM pg_publication WHERE obj_description(oid, 'pg_publication') = %s",
                [_RECORD.format(log.identity.log_id)],
            )
            .fetchone()
        )
        if found is None:
            return None
        return SourceError(
            f"publication {self.publication} is called {found[0]} now",
            op="prepare",
            pipeline=self.pipeline,
            hint=f"Run ALTER PUBLICATION {quoted(found[0])} RENAME TO {quoted(self.publication)} at the source, then "
            "run again: the next run says what to copy anew.",
        )

    def _not_ours(self, server: Server) -> SourceError:
        """The error for a comment that is somebody else's. If there is a log, it says what the comment was, since the
        log is created last; what else was done to the publication is found by who wrote it.
        """
        error = self.missing(f"publication {self.publication} was made or changed by somebody else")
        log = self.log()
        if log is None:
            return error
        self._require_log_of(log, server)
        former = self._recording(Record(log_id=log.identity.log_id, is_ready=True)).as_string()
        return SourceError(
            f"publication {self.publication} was made or changed by somebody else: its comment does not name log "
            f"{log.identity.log_id}",
            op=error.op,
            pipeline=self.pipeline,
            hint=f"Run {former} at the source, then run again: if more than the comment was changed, "
            "that run says what.",
        )

    def _recording(self, record: Record) -> sql.Composed:
        """The statement that writes a record."""
        text = f"{_RECORD.format(record.log_id)}{'' if record.is_ready else ', being prepared'}"
        return sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(sql.Identifier(self.publication), sql.Literal(text))

    def _commented(self) -> str | None:
        """The publication's comment; None without a publication."""
        found = (
            self._catalog()
            .execute(
                "SELECT coalesce(obj_description(oid, 'pg_publication'), '') FROM pg_publication WHERE pubname = %s",
                [self.publication],
            )
            .fetchone()
        )
        return None if found is None else str(found[0])

    def _opened(self, record: Record) -> LogReader:
        log = self.log()
        if log is None:
            raise SourceError(
                f"slot {self.slot.name} feeds log {record.log_id}, which is not at {self.log_url}",
                op="prepare",
                hint="Give the log_url of that log, or this pipeline another slot. Only if "
                f"no other pipeline uses the slot: {START_ANEW}",
            )
        return log

    def _require_log_of(self, log: LogReader, server: Server) -> None:
        """That the log is one of this server, database, slot and publication."""
        identity = log.identity
        logged = log.state().adopted_server or identity.server
        if logged != server.system_identifier and identity.database == server.database:
            raise LogError(
                f"{self.log_url} is another source's log: its server is {logged}, while server "
                f"{server.system_identifier} is asked for at {self.session.place}",
                op="prepare",
                pipeline=self.pipeline,
                hint="Use this source's log_url, or a new one. If this server took the place of that one, as after "
                f"pg_upgrade, run parallel-apply adopt-source --pipeline {self.pipeline}.",
            )
        self._require_same("server", logged, server.system_identifier)
        self.require_same_names(log, server)

    def _require_same(self, what: str, logged: str, ours: str) -> None:
        if logged != ours:
            raise LogError(
                f"{self.log_url} is another source's log: its {what} is {logged}, while {what} {ours} is asked "
                f"for at {self.session.place}",
                op="prepare",
                pipeline=self.pipeline,
                hint="Use this source's log_url, or a new one." + _SAME_NAME.get(what, "").format(logged),
            )

    def _catalog(self) -> psycopg.Connection[Any]:
        return self.session.catalog()
