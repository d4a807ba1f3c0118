"""`Target` for PostgreSQL: the rooms of this folder behind the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psycopg

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.errors import (
    BranchesLost,
    ParallelApplyError,
    RetryableError,
    TargetError,
    Unavailable,
)
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import Branch, Unit
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.model.position import Position, low_watermark
from airflow_parallel_apply.pipeline.model.removal import Removal
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.expectation import Expectation
from airflow_parallel_apply.pipeline.target.postgres.check import target_findings
from airflow_parallel_apply.pipeline.target.postgres.colocation import find_colocation
from airflow_parallel_apply.pipeline.target.postgres.drop import drop_target
from airflow_parallel_apply.pipeline.target.postgres.held_up import held_up
from airflow_parallel_apply.pipeline.target.postgres.merge.missing_rows import MissingRows, explain_missing
from airflow_parallel_apply.pipeline.target.postgres.positions.branches import (
    branch_findings,
    prepared_branches,
    read_pending,
    record,
    require_none_undecided,
    roll_back,
    settle,
    without_branches,
)
from airflow_parallel_apply.pipeline.target.postgres.positions.gone_positions import require_no_rows
from airflow_parallel_apply.pipeline.target.postgres.positions.origin import CommitOrigins
from airflow_parallel_apply.pipeline.target.postgres.positions.positions import (
    Standing,
    lay_out,
    lost,
    move,
    own,
    read_log_id,
    read_positions,
    require_planned,
    routed,
    standing,
    take,
    take_part,
)
from airflow_parallel_apply.pipeline.target.postgres.positions.recopied import read_recopied
from airflow_parallel_apply.pipeline.target.postgres.redefine.applied_tables import note_unbegun, note_unknown, settled
from airflow_parallel_apply.pipeline.target.postgres.schema import is_installed, migrate, read_identity
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.staging.staging import drop_claim_staging
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.pipeline.target.postgres.steps import Steps
from airflow_parallel_apply.pipeline.target.protocol import Pending, Recopied, TargetIdentity
from airflow_parallel_apply.pipeline.target.relations import Relations
from airflow_parallel_apply.pipeline.target.steps import Capability, Statement, Step


class PostgresTarget:
    """See `Target`. `relations`: the log's. `ledger`: names the database of a ledger elsewhere; None: the plan is in
    this database, and a commit looks at it in its own transaction.
    """

    def __init__(self, session: Session, *, relations: Relations, ledger: Callable[[], str] | None = None) -> None:
        self._session = session
        self._relations = relations
        self._ledger = ledger
        self._origins = CommitOrigins(session)

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(Capability)

    # --- set-up ---
    def is_installed(self) -> bool:
        return is_installed(self._session)

    def migrate(self) -> tuple[str, ...]:
        return migrate(self._session)

    def drop(self, *, force: bool) -> Removal:
        return drop_target(self._session, force=force)

    def identity(self) -> TargetIdentity:
        return read_identity(self._session)

    def findings(self, expected: Expectation) -> tuple[Finding, ...]:
        return target_findings(self._session, expected)

    def branch_findings(self, branches: int) -> tuple[Finding, ...]:
        return branch_findings(self._session, branches)

    def colocation(self, tables: TablePatterns) -> tuple[tuple[str, ...], ...]:
        return find_colocation(self._session, tables)

    def log_id(self) -> str:
        return read_log_id(self._session)

    def recopied(self) -> tuple[Recopied, ...]:
        return read_recopied(self._session)

    # --- positions ---
    def positions(self, *, durable: bool = False) -> tuple[Position, ...]:
        if not durable:
            with self._session.errors("read positions"):
                return read_positions(self._session.connection(), self._session)
        with self._session.transaction("settle positions") as connection:
            found = read_positions(connection, self._session)
            # What we see committed has its commit record before ours in the WAL, and ours waits for the disk.
            connection.execute(statement("positions", "wait_for_disk"))
            connection.execute(statement("positions", "write"))
        return found

    def pending(self) -> Pending:
        return read_pending(self._session)

    def held_up(self) -> tuple[Finding, ...]:
        return held_up(self._session)

    def generation(self) -> int:
        return routed(self._session, self._ledger_name())[1]

    def own(self, generation: int) -> None:
        own(self._session, generation)

    def routing_digest(self) -> str:
        return routed(self._session, self._ledger_name())[0]

    def lay_out(self, *, log_id: str, routing: Routing, generation: int) -> int:
        ledger = self._ledger_name()
        if self._ledger is not None and generation > 0 and not self.routing_digest():
            require_no_rows(self._session, self._relations.all_names())
        return lay_out(self._session, log_id=log_id, routing=routing, generation=generation, ledger=ledger)

    def take(
        self,
        channel: int | None,
        *,
        generation: int,
        token: str,
        routing_digest: str | None = None,
        group: int | None = None,
    ) -> Position:
        return take(
            self._session, channel, generation=generation, token=token, routing_digest=routing_digest, group=group
        )

    def take_part(self, unit: Unit) -> bool:
        return take_part(self._session, unit)

    def leave(self) -> None:
        with self._session.errors("leave"):
            self._session.rest()

    def note_tables(self, unbegun: Sequence[Relation] | None = None) -> None:
        # Not brief while it reads the log, which waits for a file system and takes its time with thousands of tables.
        with self._session.transaction("note tables", is_brief=False) as connection:
            applied_seqno = low_watermark(read_positions(connection, self._session))
            known = settled(self._relations.definitions(), applied_seqno)
            connection.execute(statement("session", "brief"))
            note_unknown(connection, self._session, known)
            if unbegun is not None:
                note_unbegun(connection, self._session, unbegun)

    # --- apply ---
    def commit(self, unit: Unit, steps: Sequence[Step]) -> None:
        staged, branches = without_branches(steps)
        if branches:
            self._commit_branches(unit, staged, branches)
            return
        try:
            if not isinstance(unit.kind, Branch):
                self._clear_way(unit, ())
            with self._applying(unit) as connection:
                if connection is not None:
                    self._run(connection, unit, steps)
                    move(connection, self._session, unit)
        finally:
            if any(isinstance(step, Statement) for step in steps):
                # The text may have changed settings of the session.
                self._session.close()

    def discard(self, token: str) -> None:
        with self._session.transaction("discard") as connection:
            drop_claim_staging(connection, pipeline=self._session.pipeline, token=token)

    def cancel(self) -> None:
        self._session.cancel()

    def close(self) -> None:
        self._session.close()

    def _run(self, connection: Connection, unit: Unit, steps: Sequence[Step]) -> None:
        Steps(connection, self._session, self._relations, unit).run(steps)
        if self._ledger is None:
            require_planned(connection, self._session, unit)

    def _commit_branches(self, unit: Unit, steps: Sequence[Step], branches: Sequence[str]) -> None:
        """Merge what was staged only, and decide on the branches, in one transaction; then commit these. What waits for
        a branch would wait for ever: then all are rolled back. Errors: `BranchesLost` in that case, and where one is
        gone; as `commit`.
        """
        self._clear_way(unit, branches)
        try:
            with self._applying(unit) as connection:
                if connection is not None:
                    connection.execute(statement("branches", "patience"))
                    self._run(connection, unit, steps)
                    record(connection, self._session, unit, branches)
        except Unavailable:
            raise
        except (RetryableError, TargetError) as error:
            if self._settled(unit):
                return
            raise BranchesLost(
                f"the group's branches were rolled back: {error.message}",
                table=error.table,
                hint="The group is staged again.",
            ) from error
        self._settled(unit)

    def _settled(self, unit: Unit) -> bool:
        """Finish what was decided, or roll all back, if the claim still is this session's. Says whether it was."""
        with self._session.errors("commit", seqno=unit.last_seqno):
            connection = self._session.connection()
            if standing(connection, self._session, unit) is not Standing.BEFORE:
                return self._done_by_another(unit)
            return settle(connection, self._session)

    def _clear_way(self, unit: Unit, branches: Sequence[str]) -> None:
        """Roll back what this commit does not name: it would wait for that. Who could prepare more was ended when all
        channels were taken. Errors: as `require_none_undecided`.
        """
        with self._session.errors("commit", seqno=unit.last_seqno):
            connection = self._session.connection()
            require_none_undecided(connection, self._session)
            others = set(prepared_branches(connection, self._session)).difference(branches)
            if others and standing(connection, self._session, unit) is Standing.BEFORE:
                roll_back(connection, others)

    def _ledger_name(self) -> str:
        return "" if self._ledger is None else self._ledger()

    @contextmanager
    def _applying(self, unit: Unit) -> Iterator[Connection | None]:
        """The transaction of a unit; None when the unit is committed already. After an error the positions are read
        again, because the error may only mean that somebody else was here: then the unit is done, or the ownership is
        lost.
        """
        has_begun = False
        with self._session.errors("commit", channel=unit.channel, seqno=unit.last_seqno):
            try:
                connection = self._session.connection()
                with self._origins.letting_go(), connection.transaction():
                    before = standing(connection, self._session, unit, lock=not isinstance(unit.kind, Branch))
                    if before is Standing.LOST:
                        raise lost(unit)
                    if before is Standing.BEFORE and unit.origin is not None:
                        self._origins.mark(connection, unit.channel, unit.origin)
                    has_begun = True
                    yield None if before is Standing.DONE else connection
            except (psycopg.Error, ParallelApplyError, MissingRows) as error:
                if not self._done_by_another(unit):
                    if isinstance(error, MissingRows):
                        raise explain_missing(self._session, error) from error
                    raise
        if not has_begun:
            # The session was ended before it could look.
            yield None

    def _done_by_another(self, unit: Unit) -> bool:
        """Errors: psycopg's own, where the target cannot be asked; `OwnershipLost`."""
        match standing(self._session.connection(), self._session, unit):
            case Standing.DONE:
                return True
            case Standing.LOST:
                raise lost(unit)
            case Standing.BEFORE:
                return False
