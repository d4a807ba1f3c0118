"""Applying a part of a group where it is loaded, and preparing it: what one attempt of a Spark task does to become a
branch of its group's commit (see `branches`).

Insertions go straight into their table, with no staging between, as long as nothing else comes for it and no value may
be stored as another one than came. What is refused there is gone, with all that the attempt read: the group is staged
again.

A branch waits for nobody: what holds a row that it needs may be prepared already, by another channel or by an attempt
before this one, and whoever commits that waits for this branch. What cannot be applied here stays staged, and whoever
commits the group merges it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.errors import OwnershipLost, ParallelApplyError, RetryableError, TargetError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import StagedTable
from airflow_parallel_apply.pipeline.model.origin import CommitOrigin
from airflow_parallel_apply.pipeline.target.loading import LoadTask
from airflow_parallel_apply.pipeline.target.postgres.branches import REFUSED, place_of, prepared_branches
from airflow_parallel_apply.pipeline.target.postgres.exact import inexact_columns
from airflow_parallel_apply.pipeline.target.postgres.expressions import require_computed_alike
from airflow_parallel_apply.pipeline.target.postgres.merge import MissingRows, be_replica, merge_parts
from airflow_parallel_apply.pipeline.target.postgres.naming import branch_name, holder_session, job_prefix
from airflow_parallel_apply.pipeline.target.postgres.narrow import narrow_columns
from airflow_parallel_apply.pipeline.target.postgres.origin import CommitOrigins
from airflow_parallel_apply.pipeline.target.postgres.parts import Part, describe_parts
from airflow_parallel_apply.pipeline.target.postgres.reinserting import Reinserting
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.side_writes import SideWrites
from airflow_parallel_apply.pipeline.target.postgres.tables import TargetTable

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The claim that a branch belongs to: what the positions of its channels say while it may be prepared."""

    pipeline: str
    channel: int | None
    group: int
    generation: int
    token: str
    after_seqno: int
    origin: CommitOrigin | None
    """The origin of the prepared transaction, where there is one."""

    @property
    def holder(self) -> str:
        """The name of its sessions, and the beginning of its branches'."""
        return holder_session(self.pipeline, self.channel, self.token, group=self.group)


class Preparation:
    """One attempt's. `task` None: it knows of no other attempt."""

    def __init__(self, session: Session, claim: Claim, *, task: LoadTask | None, attempt: str) -> None:
        self._session = session
        self._claim = claim
        self._job = job_prefix(claim.holder, attempt if task is None else task.job)
        self._task = f"{self._job}{0 if task is None else task.number}:"
        self._name = branch_name(self._task, attempt)
        self._turn = 0 if task is None else task.number
        self._is_second_job = False
        self._is_replica: bool | None = None
        self._loaded: list[StagedTable] = []

    @property
    def refused(self) -> tuple[StagedTable, ...]:
        """The place of a part of which nothing is left."""
        return (place_of(REFUSED, ()),)

    def takes(self, connection: Connection, table: TargetTable) -> bool:
        """True if insertions may go straight into a table, in this transaction. Errors: as `describe_parts`."""
        if self._is_second_job or table.is_guarded(as_replica=True):
            return False
        columns = [table.columns[column.name] for column in table.relation.columns if column.name in table.columns]
        if any(column.generated for column in columns) or inexact_columns(table) or narrow_columns(table):
            return False
        if self._is_replica is None:
            connection.execute(self._session.sql("branches", "patience"))
            self._is_replica = be_replica(connection, self._session)
        if self._is_replica:
            require_computed_alike(connection, [table], schema=self._session.schema)
        return self._is_replica

    def loaded(self, table: StagedTable) -> None:
        """So much went straight into a table."""
        self._loaded.append(table)

    def adopted(self) -> StagedTable | None:
        """The branch that an attempt before this one prepared, and nobody may have been told of. Errors: psycopg's
        own.
        """
        names = prepared_branches(self._session.connection(), self._session)
        of_claim = [name for name in names if name.startswith(f"{self._claim.holder}:")]
        self._is_second_job = any(not name.startswith(self._job) for name in of_claim)
        mine = [name for name in of_claim if name.startswith(self._task)]
        return place_of(mine[0], ()) if mine else None

    def begin(self, connection: Connection) -> None:
        """Open the transaction. Errors: `OwnershipLost` where the claim is another's; psycopg's own."""
        connection.execute("BEGIN")
        claimed = connection.execute(
            self._session.sql("branches", "is_claimed"),
            {
                "pipeline": self._claim.pipeline,
                "channel": self._claim.channel,
                "after_seqno": self._claim.after_seqno,
                "generation": self._claim.generation,
                "token": self._claim.token,
            },
        ).fetchone()
        if claimed != (True,):
            raise OwnershipLost("a newer claim took the part of the group", channel=self._claim.channel)

    def end(
        self, connection: Connection, staged: Sequence[StagedTable], relations: Sequence[Relation]
    ) -> tuple[StagedTable, ...]:
        """Apply what is staged, and prepare it, or commit the staging; says which of both there is. Errors: psycopg's
        own.
        """
        done = [*self._loaded, *staged]
        # What another job of the claim has prepared may be among these rows.
        if not done or self._is_second_job or not self._apply(connection, staged, relations):
            if self._loaded:
                return self.refused
            connection.execute("COMMIT")
            return tuple(staged)
        if self._claim.origin is not None:
            # Let go with the session, right behind this.
            CommitOrigins(self._session).mark_shared(connection, self._turn, self._claim.origin)
        try:
            connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(self._name)))
        except psycopg.Error as error:
            if connection.closed:
                raise
            _logger.warning("a branch was not prepared, its group is staged again: %s", error)
            return self.refused
        return (place_of(self._name, done),)

    def _apply(self, connection: Connection, staged: Sequence[StagedTable], relations: Sequence[Relation]) -> bool:
        """Merge into the tables, if nothing is in the way; what was begun is undone where something is."""
        by_id = {relation.relation_id: relation for relation in relations}
        try:
            with connection.transaction():
                connection.execute(self._session.sql("branches", "patience"))
                if not be_replica(connection, self._session):
                    raise _NotHere("the role may not apply as a replica")
                parts = describe_parts(
                    connection, self._session, staged, [by_id[table.relation_id] for table in staged]
                )
                _require_plain(parts)
                names = {(relation.schema, relation.table) for relation in relations}
                self._merge(connection, parts, names)
                connection.execute(
                    self._session.sql("branches", "mark"), {"name": self._name, "pipeline": self._claim.pipeline}
                )
        except (_NotHere, MissingRows, TargetError, RetryableError) as error:
            return _is_left_staged(error)
        except psycopg.Error as error:
            if connection.closed:
                raise
            return _is_left_staged(error)
        return True

    def _merge(self, connection: Connection, parts: Sequence[Part], followed: Collection[tuple[str, str]]) -> None:
        beside = SideWrites(connection, schema=self._session.schema, followed=lambda: followed, as_replica=True)
        merge_parts(connection, self._session, parts, reinserting=Reinserting(as_replica=True), beside=beside)
        beside.require_nothing_left()


class _NotHere(ParallelApplyError):
    """The branch needs something that only the commit of the whole group can do."""


def _require_plain(parts: Sequence[Part]) -> None:
    """Errors: `_NotHere` for tables on which something acts that sees more than one channel's rows, and for those whose
    rows have no key to tell them apart.
    """
    for part in parts:
        if part.table.is_guarded(as_replica=True):
            raise _NotHere("triggers or rules act on applied rows", table=part.table.relation.name)
        if part.staged.deletes and not part.table.relation.key_indexes:
            raise _NotHere("rows without a key are deleted", table=part.table.relation.name)


def _is_left_staged(error: Exception) -> bool:
    _logger.info("a part of a group stays staged: %s", error)
    return False
