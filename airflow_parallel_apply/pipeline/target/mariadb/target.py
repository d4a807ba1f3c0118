"""`Target` for MariaDB and MySQL: the rooms of this folder behind the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pymysql

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import Branch, Unit
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.model.position import Position
from airflow_parallel_apply.pipeline.model.removal import Removal
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.expectation import Expectation
from airflow_parallel_apply.pipeline.target.mariadb.check import target_findings
from airflow_parallel_apply.pipeline.target.mariadb.drop import drop_target
from airflow_parallel_apply.pipeline.target.mariadb.merge import MissingRows, explain_missing
from airflow_parallel_apply.pipeline.target.mariadb.naming import claim_tag
from airflow_parallel_apply.pipeline.target.mariadb.positions import (
    Standing,
    are_whole,
    lay_out,
    lost,
    move,
    own,
    read_log_id,
    read_positions,
    require_known,
    routed,
    settled_positions,
    standing,
    take,
    take_part,
)
from airflow_parallel_apply.pipeline.target.mariadb.schema import is_installed, migrate, read_identity
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.staging import drop_foreign_staging, drop_staging
from airflow_parallel_apply.pipeline.target.mariadb.steps import run_steps
from airflow_parallel_apply.pipeline.target.protocol import Pending, Recopied, TargetIdentity
from airflow_parallel_apply.pipeline.target.relations import Relations
from airflow_parallel_apply.pipeline.target.steps import Capability, Merge, Step


class MariaDbTarget:
    """See `Target`. `relations`: the log's. `ledger`: names the database of the ledger, which is never this one."""

    def __init__(self, session: Session, *, relations: Relations, ledger: Callable[[], str] | None = None) -> None:
        self._session = session
        self._relations = relations
        self._ledger = ledger

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.TRUNCATE, Capability.REPLAY})

    # --- set-up ---
    def is_installed(self) -> bool:
        return is_installed(self._session)

    def migrate(self) -> tuple[str, ...]:
        return migrate(self._session)

    def identity(self) -> TargetIdentity:
        return read_identity(self._session)

    def drop(self, *, force: bool) -> Removal:
        return drop_target(self._session, force=force)

    def findings(self, expected: Expectation) -> tuple[Finding, ...]:
        return target_findings(self._session, expected)

    def branch_findings(self, branches: int) -> tuple[Finding, ...]:
        del branches
        return ()

    def colocation(self, tables: TablePatterns) -> tuple[tuple[str, ...], ...]:
        del tables  # Foreign keys are not checked while it applies.
        return ()

    def log_id(self) -> str:
        return read_log_id(self._session)

    def recopied(self) -> tuple[Recopied, ...]:
        return ()

    # --- positions ---
    def positions(self, *, durable: bool = False) -> tuple[Position, ...]:
        with self._session.errors("read positions"):
            return settled_positions(self._session) if durable else read_positions(self._session)

    def pending(self) -> Pending:
        return Pending(branches=0, decided=None)

    def held_up(self) -> tuple[Finding, ...]:
        return ()

    def generation(self) -> int:
        return routed(self._session, self._ledger_name())[1]

    def own(self, generation: int) -> None:
        own(self._session, generation)

    def routing_digest(self) -> str:
        digest = routed(self._session, self._ledger_name())[0]
        with self._session.errors("read positions"):
            return digest if digest and are_whole(self._session) else ""

    def lay_out(self, *, log_id: str, routing: Routing, generation: int) -> int:
        ledger = self._ledger_name()
        if generation > 0:
            require_known(self._session, self._relations)
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
        take_part(self._session, unit)
        return False

    def leave(self) -> None:
        with self._session.errors("leave"):
            self._session.rest()

    def note_tables(self, unbegun: Sequence[Relation] | None = None) -> None:
        """No-op: it knows them by their names."""

    # --- apply ---
    def commit(self, unit: Unit, steps: Sequence[Step]) -> None:
        with self._applying(unit) as is_to_be_applied:
            if is_to_be_applied:
                run_steps(self._session, self._relations, steps)
                move(self._session, unit)
        tables = [table for step in steps if isinstance(step, Merge) for table in step.staged.tables]
        with suppress(pymysql.MySQLError):
            # What stays is nobody's: whoever takes the channel next drops it.
            drop_staging(self._session, [table.staging for table in tables])

    def discard(self, token: str) -> None:
        claim = claim_tag(token)
        with self._session.errors("discard"):
            drop_foreign_staging(self._session, lambda owner: owner.claim == claim)

    def cancel(self) -> None:
        with suppress(pymysql.MySQLError):
            self._session.cancel()

    def close(self) -> None:
        self._session.close()

    def _ledger_name(self) -> str:
        return "" if self._ledger is None else self._ledger()

    @contextmanager
    def _applying(self, unit: Unit) -> Iterator[bool]:
        """The transaction of a unit; False when the unit is committed already. After an error the positions are read
        again, since it may only say that somebody else was here: then the unit is done, or the ownership is lost.
        """
        has_begun = False
        with self._session.errors("commit", channel=unit.channel, seqno=unit.last_seqno):
            try:
                with self._session.atomic():
                    before = standing(self._session, unit, lock=not isinstance(unit.kind, Branch))
                    if before is Standing.LOST:
                        raise lost(unit)
                    has_begun = True
                    yield before is Standing.BEFORE
            except (pymysql.MySQLError, ParallelApplyError, MissingRows) as error:
                if not self._is_done_by_another(unit):
                    if isinstance(error, MissingRows):
                        raise explain_missing(self._session, error) from error
                    raise
        if not has_begun:
            # The session was ended before it could look.
            yield False

    def _is_done_by_another(self, unit: Unit) -> bool:
        """Errors: the driver's own, where the target cannot be asked; `OwnershipLost`."""
        match standing(self._session, unit):
            case Standing.DONE:
                return True
            case Standing.LOST:
                raise lost(unit)
            case Standing.BEFORE:
                return False
