"""Adoption: a server that took the place of a log's source becomes the log's source, once it has proven what it holds.

Two proofs are accepted, since a system identifier alone proves nothing::

    resume point    the slot stands in front of the last commit that the log has, and sends that transaction again:
                    physically the same server
    release         `release_slot` moved the slot behind everything, under the former identity, and recorded the place.
                    pg_upgrade (17 and later) migrates a slot only if nothing at all was committed behind it; one that
                    was made by hand instead is told by its FAILOVER, which pg_upgrade keeps

Everything else is refused, with what is missing.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.errors import ConfigurationError, SourceError, Unavailable
from airflow_parallel_apply.pipeline.log.open import log_exists, open_reader, open_writer
from airflow_parallel_apply.pipeline.log.protocol import LogState
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.source.postgres.lsn import lsn_text
from airflow_parallel_apply.pipeline.source.postgres.objects import PipelineObjects, Server
from airflow_parallel_apply.pipeline.source.postgres.prepare import Preparation, slot_name
from airflow_parallel_apply.pipeline.source.postgres.proof import prove
from airflow_parallel_apply.pipeline.source.postgres.registration import Registration
from airflow_parallel_apply.pipeline.source.postgres.session import Session
from airflow_parallel_apply.pipeline.source.postgres.slot import Slot, SlotState

_START_ANEW: Final = (
    "Start anew: parallel-apply drop, empty the target's tables, a new log_url, start=copy; or start=equal, if nobody "
    "wrote to the source since the last green run."
)

_FIRST_TO_MIGRATE_SLOTS: Final = 170000


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """The result of an adoption. `former`: the system identifier that the log had; equal to `server` if nothing
    changed. `offset`: where the slot stands.
    """

    pipeline: str
    former: str
    server: str
    offset: Offset
    proof: str

    @property
    def is_new(self) -> bool:
        """True if the log has another source now."""
        return self.former != self.server


def adopt_source(endpoint: Endpoint, config: PipelineConfig) -> Adoption:
    """Record the server as the log's source. Does nothing where it is that already, but for the proof.

    Errors: `SourceError` for what the server lacks, `LogError`, `ConfigurationError`, `Unavailable`; `WriterFenced`
    when a capture went on meanwhile. Nothing is changed by any of them.
    """
    with _session(endpoint, config) as session, session.errors("adopt-source"):
        return _Adopting(session, config).adopt()


def release_slot(endpoint: Endpoint, config: PipelineConfig) -> Adoption:
    """Move the slot behind all that was committed, before the server is upgraded, and record the place in the log: the
    log first, so that a crash in between leaves a slot that still proves itself by the resume point.

    Errors: `SourceError` while the log lacks a followed change; those of `adopt_source`.
    """
    with _session(endpoint, config) as session, session.errors("adopt-source"):
        return _Adopting(session, config).release()


def _session(endpoint: Endpoint, config: PipelineConfig) -> closing[Session]:
    return closing(Session(endpoint, application_name=f"parallel_apply {config.pipeline} adopt-source"))


class _Adopting:
    def __init__(self, session: Session, config: PipelineConfig) -> None:
        self._session = session
        self._config = config
        name = slot_name(config.pipeline)
        self._slot = Slot(session, name=name, publication=name)
        self._mine = PipelineObjects(
            session=session, slot=self._slot, publication=name, pipeline=config.pipeline, log_url=config.log_url
        )

    def adopt(self) -> Adoption:
        with Preparation(self._session, self._slot, self._mine.publication, self._config).locked(
            self._session.catalog()
        ):
            server, former = self._belonging()
            writer = open_writer(self._config.log_url)
            state = writer.state()
            slot = self._standing(server)
            registration = None if state.registration is None else Registration.from_text(state.registration)
            if slot.confirmed_lsn <= state.place.release_offset and slot.confirmed_lsn not in state.released:
                self._require_resume(state)
                proof = "it sends the last transaction that the log has of its source"
                if registration is not None:
                    # Physically the same server: its oids and transaction ids mean what they meant.
                    registration = replace(registration, server=server.system_identifier)
            else:
                self._require_released(state, slot, is_same=former == server.system_identifier)
                proof = "its slot was moved behind all that was committed, and nothing was committed before it was kept"
                writer.release(slot.confirmed_lsn)
            if former != server.system_identifier:
                writer.adopt(server.system_identifier)
                if registration is not None:
                    found = prove(self._session, self._slot.name, self._mine.publication, self._config, registration)
                    # What is in doubt stays as it was registered: the next run tells it, and copies can be made then.
                    writer.register(found.registration.to_text(), 0)
                writer.commit(state.captured_offset)
        return Adoption(
            pipeline=self._config.pipeline,
            former=former,
            server=server.system_identifier,
            offset=slot.confirmed_lsn,
            proof=proof,
        )

    def release(self) -> Adoption:
        with Preparation(self._session, self._slot, self._mine.publication, self._config).locked(
            self._session.catalog()
        ):
            server, former = self._belonging()
            if former != server.system_identifier:
                raise ConfigurationError(
                    f"the log's source is server {former}, and this is server {server.system_identifier}",
                    op="adopt-source",
                    pipeline=self._config.pipeline,
                    hint="Upgraded already? Leave --before-upgrade out.",
                )
            if self._session.catalog().info.server_version < _FIRST_TO_MIGRATE_SLOTS:
                raise self._refused(
                    f"the source {self._session.place} is older than PostgreSQL 17: pg_upgrade would drop its slot",
                    "Keep writers out, run the pipeline once more, then parallel-apply drop, upgrade, a new log_url, "
                    "start=equal, and let writers in once that run has begun.",
                )
            writer = open_writer(self._config.log_url)
            state = writer.state()
            standing = self._standing(server)
            if not self._slot.is_kept_by_standbys():
                self._slot.keep_by_standbys()
            self._slot.advance(state.place)
            # Read before anything is looked at: what commits meanwhile commits behind it, and stays in the slot.
            end_lsn = self._slot.flushed_lsn()
            if self._slot.has_changes(state.place):
                raise SourceError(
                    f"the log lacks changes of the source {self._session.place}",
                    op="adopt-source",
                    pipeline=self._config.pipeline,
                    hint="Keep writers out, run the pipeline once more, and run this again.",
                )
            if state.registration is not None:
                registration = Registration.from_text(state.registration)
                found = prove(self._session, self._slot.name, self._mine.publication, self._config, registration)
                writer.register(found.require(self._config, "adopt-source").to_text(), end_lsn)
            # Released for the second time, the slot stands at the former place until it has moved.
            writer.release(*(lsn for lsn in state.released if lsn == standing.confirmed_lsn), end_lsn)
            writer.commit(state.captured_offset)
            self._session.catalog().execute(
                "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", [self._slot.name, lsn_text(end_lsn)]
            )
            slot = self._standing(server)
        return Adoption(
            pipeline=self._config.pipeline,
            former=former,
            server=server.system_identifier,
            offset=slot.confirmed_lsn,
            proof="the log has all that was committed",
        )

    def _belonging(self) -> tuple[Server, str]:
        """The server, and the system identifier that the log has. Errors: `SourceError`, `ConfigurationError`."""
        server = self._mine.server()
        url = self._config.log_url
        in_recovery = self._session.catalog().execute("SELECT pg_is_in_recovery()").fetchone()
        if in_recovery and in_recovery[0]:
            raise self._refused(f"the source {self._session.place} is a standby", "Promote it first.")
        if not log_exists(url):
            raise self._refused(f"there is no log at {url}", "Give the pipeline's log_url.")
        reader = open_reader(url)
        former = reader.state().adopted_server or reader.identity.system_identifier
        record = self._mine.ready_record()
        if record is None:
            raise self._refused(
                f"publication {self._mine.publication} is not in {self._session.place}",
                f"pg_upgrade and standbys keep it. Is this the right database? If it is: {_START_ANEW}",
            )
        self._mine.require_log(server, record)
        return server, former

    def _standing(self, server: Server) -> SlotState:
        """The slot, valid and free. Errors: `SourceError`, `Unavailable`."""
        slot = self._slot.state()
        if slot is None or slot.database not in (None, server.database):
            raise SourceError(
                f"slot {self._slot.name} is not at {self._session.place}: what was committed since is missing",
                op="adopt-source",
                pipeline=self._config.pipeline,
                hint="pg_upgrade keeps slots from 17 on, a standby if it synchronizes them (sync_replication_slots). "
                f"{_START_ANEW}",
            )
        if slot.active_pid is not None:
            raise Unavailable(
                f"slot {self._slot.name} is in use by process {slot.active_pid}",
                op="adopt-source",
                hint="Stop the pipeline's runs, and run this again.",
            )
        if slot.wal_status == "lost" or slot.plugin is None:
            raise SourceError(
                f"slot {self._slot.name} at {self._session.place} was invalidated: changes are missing",
                op="adopt-source",
                pipeline=self._config.pipeline,
                hint=_START_ANEW,
            )
        return slot

    def _require_resume(self, state: LogState) -> None:
        if state.resume is None or state.resume.xid is None:
            raise SourceError(
                "the log has no transaction of its source by which this server could prove itself",
                op="adopt-source",
                pipeline=self._config.pipeline,
                hint=_START_ANEW,
            )
        self._slot.require_resumable(state.place)

    def _require_released(self, state: LogState, slot: SlotState, *, is_same: bool) -> None:
        if not state.released:
            what = f"above what the log has captured, {lsn_text(state.place.release_offset)}"
        elif slot.confirmed_lsn not in state.released and (is_same or slot.confirmed_lsn < state.released[-1]):
            what = f"not where it was moved to before the upgrade, {lsn_text(state.released[-1])}"
        elif not is_same and not self._slot.is_kept_by_standbys():
            what = "and lacks the FAILOVER that it had before the upgrade"
        else:
            return
        raise SourceError(
            f"slot {self._slot.name} at {self._session.place} stands at {lsn_text(slot.confirmed_lsn)}, {what}: "
            "changes may be missing",
            op="adopt-source",
            pipeline=self._config.pipeline,
            hint="Was it made anew? Then what was committed before is missing. If the server is still there that was "
            f"upgraded: start it, run adopt-source --before-upgrade there, upgrade again. Otherwise: {_START_ANEW}",
        )

    def _refused(self, what: str, hint: str) -> ConfigurationError:
        return ConfigurationError(what, op="adopt-source", pipeline=self._config.pipeline, hint=hint)
