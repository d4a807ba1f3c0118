"""Adoption: a server that took the place of a log's source becomes the log's source, once it has proven what it holds.

Two proofs are accepted, since a system identifier alone proves nothing::

    resume point    the slot stands in front of the last commit that the log has, and sends that transaction again:
                    physically the same server
    release         `release` advanced the slot behind everything, under the former identity, and recorded the place.
                    pg_upgrade (17 and later) migrates a slot only if nothing at all was committed behind it; one that
                    was made by hand instead is told by its FAILOVER, which pg_upgrade keeps

Everything else is refused, with what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Final

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.errors import START_ANEW, ConfigurationError, SourceError, Unavailable
from airflow_parallel_apply.pipeline.log.protocol import LogState
from airflow_parallel_apply.pipeline.model.finding import command_line, listed
from airflow_parallel_apply.pipeline.source.abilities import Adopted, Adoption, Vouched
from airflow_parallel_apply.pipeline.source.postgres.lsn import lsn_text
from airflow_parallel_apply.pipeline.source.postgres.proof.proof import Proof, prove
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import Registration
from airflow_parallel_apply.pipeline.source.postgres.session import Session
from airflow_parallel_apply.pipeline.source.postgres.setup.objects import PipelineObjects
from airflow_parallel_apply.pipeline.source.postgres.setup.prepare import Preparation
from airflow_parallel_apply.pipeline.source.postgres.slot.slot import Slot, SlotState
from airflow_parallel_apply.pipeline.source.protocol import Look, OpenLog

_START_ANEW: Final = (
    f"{START_ANEW} If `parallel-apply compare` finds both sides equal, and nobody writes to the source, keep the rows, "
    "and use start=equal."
)

_FIRST_TO_MIGRATE_SLOTS: Final = 170000


@contextmanager
def adopting(endpoint: Endpoint, config: PipelineConfig, log: OpenLog, *, op: str) -> Iterator[PostgresAdopting]:
    """See `Adoptable`. No run prepares meanwhile."""
    session = Session(endpoint, application_name=f"parallel_apply {config.pipeline} {op}")
    with closing(session), session.errors(op):
        name = config.stream
        slot = Slot(session, name=name, publication=name)
        with Preparation(session, slot, name, config).locked(session.catalog()):
            yield PostgresAdopting(session, slot, config, log, op=op)


class PostgresAdopting:
    """Implements `Adopting`."""

    def __init__(self, session: Session, slot: Slot, config: PipelineConfig, log: OpenLog, *, op: str) -> None:
        self._session = session
        self._slot = slot
        self._config = config
        self._op = op
        self._mine = PipelineObjects(
            session=session,
            slot=slot,
            publication=slot.name,
            pipeline=config.pipeline,
            log_url=config.log_url,
            log=log,
        )
        self._server = self._mine.server()
        self._former = self._belonging()

    def adopt(self, log: LogState) -> Adopted:
        slot, server = self._standing(), self._server.system_identifier
        registration = None if log.registration is None else Registration.from_text(log.registration)
        released: tuple[int, ...] = ()
        if slot.confirmed_lsn <= log.place.release_offset and slot.confirmed_lsn not in log.released:
            proof = self._resumed(log)
            if registration is not None:
                # Physically the same server: its oids and transaction ids mean what they meant.
                registration = replace(registration, server=server)
        else:
            self._require_released(log, slot, is_same=self._former == server)
            proof = "its slot was advanced behind all that was committed, and nothing was committed before it was kept"
            released = (slot.confirmed_lsn,)
        look = Look()
        if self._former != server and registration is not None:
            # What is in doubt stays as it was registered: the next run tells it, and copies can be made then.
            look = Look(registration=self._proof(registration, log).registration.to_text())
        return Adopted(adoption=self._adoption(slot.confirmed_lsn, proof), look=look, released=released)

    def release(self, log: LogState) -> Adopted:
        server = self._server.system_identifier
        if self._former != server:
            raise ConfigurationError(
                f"the log's source is server {self._former}, and this is server {server}",
                op=self._op,
                pipeline=self._config.pipeline,
                hint="Upgraded already? Leave --before-upgrade out.",
            )
        if self._session.catalog().info.server_version < _FIRST_TO_MIGRATE_SLOTS:
            raise self._refused(
                f"the source {self._session.place} is older than PostgreSQL 17: pg_upgrade would drop its slot",
                "Keep writers out, run the pipeline once more, then parallel-apply drop, upgrade, a new log_url, "
                "start=equal, and let writers in once that run has begun.",
            )
        standing = self._standing()
        if not self._slot.is_kept_by_standbys():
            self._slot.keep_by_standbys()
        self._slot.advance(log.place)
        # Read before anything is looked at: what commits meanwhile commits behind it, and stays in the slot.
        end_lsn = self._slot.flushed_lsn()
        if self._slot.has_changes(log.place):
            raise SourceError(
                f"the log lacks changes of the source {self._session.place}",
                op=self._op,
                pipeline=self._config.pipeline,
                hint="Keep writers out, run the pipeline once more, and run this again.",
            )
        look = Look()
        if log.registration is not None:
            proof = self._proof(Registration.from_text(log.registration), log)
            proven = proof.require(self._config, self._op)
            look = Look(registration=proven.to_text(), registered_offset=end_lsn)
        # Released for the second time, the slot stands at the former place until it has advanced.
        released = (*(lsn for lsn in log.released if lsn == standing.confirmed_lsn), end_lsn)
        adoption = self._adoption(end_lsn, "the log has all that was committed")
        return Adopted(adoption=adoption, look=look, released=released)

    def vouch(self, log: LogState, tables: Sequence[tuple[str, str]]) -> Vouched:
        if self._former != self._server.system_identifier or log.registration is None:
            raise self._unvouched(
                "the log knows no tables of this server", "Run the pipeline. It says what is in doubt."
            )
        self._slot.require_resumable(log.place)
        registration = Registration.from_text(log.registration)
        proof = self._proof(registration, log)
        names = [".".join(table) for table in tables]
        for name in names:
            found = [doubt for doubt in proof.doubts if doubt.table == name]
            if not found:
                raise self._unvouched(f"nothing that was done to {name} is in doubt", "Run the pipeline.")
            if wrong := [doubt.what for doubt in found if not doubt.unless]:
                raise self._unvouched(
                    f"nobody can vouch for {name}: {listed(wrong)}",
                    f"Run `{command_line('recopy', [name])}`.",
                )
        # As they were compared: what becomes of them meanwhile is in doubt again. A name that they had meanwhile is the
        # next run's to tell.
        vouched = {
            one.oid: replace(now, schema=one.schema, table=one.table, touched=one.touched)
            for one in registration.tables
            if (now := proof.observed.get(one.oid)) is not None and now.name in names
        }
        self._slot.mark()
        # The horizon stays: by that other tables are in doubt.
        known = tuple(vouched.get(one.oid, one) for one in registration.tables)
        # Partitions that the stream tells to be gone are no longer among those of the observed tables.
        removed = proof.registration.removed
        look = Look(registration=replace(registration, tables=known, removed=removed).to_text())
        return Vouched(look=look, doubts=tuple(doubt.what for doubt in proof.doubts if doubt.table in names))

    def let_go(self, adopted: Adopted) -> Adoption:
        self._session.catalog().execute(
            "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", [self._slot.name, lsn_text(adopted.adoption.offset)]
        )
        return replace(adopted.adoption, offset=self._standing().confirmed_lsn)

    def _adoption(self, lsn: int, proof: str) -> Adoption:
        return Adoption(
            pipeline=self._config.pipeline,
            former=self._former,
            server=self._server.system_identifier,
            offset=lsn,
            proof=proof,
        )

    def _proof(self, registration: Registration, log: LogState) -> Proof:
        return prove(self._session, self._slot.name, self._mine.publication, self._config, registration, log=log)

    def _belonging(self) -> str:
        """The system identifier that the log has. Errors: `SourceError`, `ConfigurationError`."""
        in_recovery = self._session.catalog().execute("SELECT pg_is_in_recovery()").fetchone()
        if in_recovery and in_recovery[0]:
            raise self._refused(f"the source {self._session.place} is a standby", "Promote it first.")
        log = self._mine.log()
        if log is None:
            raise self._refused(f"there is no log at {self._config.log_url}", "Give the pipeline's log_url.")
        self._mine.require_same_names(log, self._server)
        former = log.state().adopted_server or log.identity.server
        record = self._mine.ready_record()
        if record is None:
            raise self._refused(
                f"publication {self._mine.publication} is not in {self._session.place}",
                f"pg_upgrade and standbys keep it. Is this the right database? {_START_ANEW}",
            )
        self._mine.require_log(self._server, record)
        return former

    def _standing(self) -> SlotState:
        """The slot, valid and free. Errors: `SourceError`, `Unavailable`."""
        slot = self._slot.state()
        if slot is None or slot.is_elsewhere:
            raise SourceError(
                f"slot {self._slot.name} is not at {self._session.place}: what was committed since is missing",
                op=self._op,
                pipeline=self._config.pipeline,
                hint="pg_upgrade keeps slots from 17 on, a standby if it synchronizes them (sync_replication_slots). "
                f"{_START_ANEW}",
            )
        if slot.active_pid is not None:
            raise Unavailable(
                f"slot {self._slot.name} is in use by process {slot.active_pid}",
                op=self._op,
                hint="Stop the pipeline's runs, and run this again.",
            )
        if slot.wal_status == "lost" or slot.plugin is None:
            raise SourceError(
                f"slot {self._slot.name} at {self._session.place} was invalidated: changes are missing",
                op=self._op,
                pipeline=self._config.pipeline,
                hint=_START_ANEW,
            )
        return slot

    def _resumed(self, state: LogState) -> str:
        """The proof of a server whose slot stands where a run left it. Errors: `SourceError`, `Unavailable`."""
        if state.resume is not None and state.resume.xid is not None:
            self._slot.require_resumable(state.place)
            return "it sends the last transaction that the log has of its source"
        if self._former == self._server.system_identifier:
            self._slot.reached_lsn(state.place, op=self._op)
            return "its identity and slot are those of the log, which has no transaction of it yet"
        raise SourceError(
            "the log has no transaction of its source by which this server could prove itself",
            op=self._op,
            pipeline=self._config.pipeline,
            hint=_START_ANEW,
        )

    def _require_released(self, state: LogState, slot: SlotState, *, is_same: bool) -> None:
        if not state.released:
            what = f"above what the log has captured, {lsn_text(state.place.release_offset)}"
        elif slot.confirmed_lsn not in state.released and (is_same or slot.confirmed_lsn < state.released[-1]):
            what = f"not where it was advanced to before the upgrade, {lsn_text(state.released[-1])}"
        elif not is_same and not self._slot.is_kept_by_standbys():
            what = "and lacks the FAILOVER that it had before the upgrade"
        else:
            return
        raise SourceError(
            f"slot {self._slot.name} at {self._session.place} stands at {lsn_text(slot.confirmed_lsn)}, {what}: "
            "changes may be missing",
            op=self._op,
            pipeline=self._config.pipeline,
            hint="If it was created anew, what was committed before is missing. If the server that was upgraded still "
            f"exists: start it, run adopt-source --before-upgrade there, and upgrade again. {_START_ANEW}",
        )

    def _unvouched(self, what: str, hint: str) -> ConfigurationError:
        return ConfigurationError(what, op=self._op, pipeline=self._config.pipeline, hint=hint)

    def _refused(self, what: str, hint: str) -> ConfigurationError:
        return ConfigurationError(what, op=self._op, pipeline=self._config.pipeline, hint=hint)
