"""Applying a part of a group where it is loaded, and preparing it: what one attempt of a Spark task does to become a
branch of its group's commit (see `branches`).

What is refused where insertions go straight into their table is gone, with all that the attempt read: the group is
staged again.

A branch waits for nobody: what holds a row that it needs may be prepared already, by another channel or by an attempt
before this one, and whoever commits that waits for this branch. What cannot be applied here stays staged, and whoever
commits the group merges it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.errors import OwnershipLost
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import StagedTable
from airflow_parallel_apply.pipeline.model.origin import CommitOrigin
from airflow_parallel_apply.pipeline.target.loading import LoadTask
from airflow_parallel_apply.pipeline.target.postgres.catalog.held import require_held
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.pipeline.target.postgres.load.applying import StraightTables, merge_here
from airflow_parallel_apply.pipeline.target.postgres.naming import branch_name, holder_session, job_prefix
from airflow_parallel_apply.pipeline.target.postgres.positions.branches import REFUSED, place_of, prepared_branches
from airflow_parallel_apply.pipeline.target.postgres.positions.origin import CommitOrigins
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement

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
        return holder_session(self.pipeline, self.channel, self.token, group=self.group, prepares=True)


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
        self._tables = StraightTables(session, patience="patience")
        self._loaded: list[StagedTable] = []

    @property
    def refused(self) -> tuple[StagedTable, ...]:
        """The place of a part of which nothing is left."""
        return (place_of(REFUSED, ()),)

    def hold(self, connection: Connection, relation: Relation) -> TargetTable:
        """See `Applying`."""
        return self._tables.hold(connection, relation)

    def takes(self, connection: Connection, table: TargetTable) -> bool:
        """See `Applying`."""
        return not self._is_second_job and self._tables.may_take(connection, table)

    def loaded(self, table: StagedTable) -> None:
        """See `Applying`."""
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
            statement("branches", "is_claimed"),
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
        """Apply what is staged, and prepare it, or commit the staging; says which of both there is. Errors: those of
        `require_held`.
        """
        done = [*self._loaded, *staged]
        # What another job of the claim has prepared may be among these rows.
        if (
            not done
            or self._is_second_job
            or not merge_here(connection, self._session, staged, relations, mark=self._name)
        ):
            if self._loaded:
                return self.refused
            connection.execute("COMMIT")
            return tuple(staged)
        require_held(connection)
        origins = CommitOrigins(self._session)
        # The session ends right behind this; but a pooler may keep it, with what it holds.
        with origins.letting_go():
            if self._claim.origin is not None:
                origins.mark_shared(connection, self._turn, self._claim.origin)
            try:
                connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(self._name)))
            except psycopg.Error as error:
                if connection.closed:
                    raise
                _logger.warning("a branch was not prepared, its group is staged again: %s", error)
                return self.refused
        return (place_of(self._name, done),)
