"""Committing a unit of insertions where it is loaded: one attempt of one Spark task is the unit's whole transaction at
the target, the move of its position included. Nothing is staged, and nothing prepared.

::

    BEGIN ── claim read ── COPY into the tables ── rows counted ── plan, origin ── position moved ── COMMIT
      a crash up to the COMMIT: nothing happened           after it: the position says that it is done

Law 3 holds as in a lane's commit: the position moves last, from the expected seqno under the unit's own generation and
claim. So of two attempts at once, Spark's retry or twin of a task, one commits: the other waits for a row or for the
position, is refused, and reads the position again. Whoever comes later finds it moved, whether or not anybody was told.
Who takes the channel ends these sessions, which bear the claim's name, before the claim is written and after it.

What cannot be applied so is staged instead, where none of the rows went straight into a table; else it is refused,
nothing is left of it, and the lane has it staged by another job.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_parallel_apply.pipeline.errors import DirectRefused
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import StagedTable, Unit
from airflow_parallel_apply.pipeline.target.postgres.catalog.held import require_held
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.pipeline.target.postgres.load.applying import StraightTables, merge_here
from airflow_parallel_apply.pipeline.target.postgres.positions.origin import CommitOrigins
from airflow_parallel_apply.pipeline.target.postgres.positions.positions import (
    Standing,
    lost,
    move,
    require_planned,
    standing,
)
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session


class DirectCommit:
    """One attempt's; implements `Applying`."""

    def __init__(self, session: Session, unit: Unit) -> None:
        self._session = session
        self._unit = unit
        self._origins = CommitOrigins(session)
        self._tables = StraightTables(session, patience="direct_patience")
        self._loaded: list[StagedTable] = []

    @property
    def done(self) -> tuple[StagedTable, ...]:
        """The place of a unit that is committed."""
        return (
            StagedTable(
                relation_id=self._loaded[0].relation_id if self._loaded else 0,
                staging="",
                inserts=sum(table.inserts for table in self._loaded),
                updates=0,
                deletes=0,
                has_unsent=False,
                is_committed=True,
            ),
        )

    def is_done(self) -> bool:
        """True if the unit is committed. Errors: `OwnershipLost` where its claim is over; psycopg's own."""
        match standing(self._session.connection(), self._session, self._unit):
            case Standing.DONE:
                return True
            case Standing.LOST:
                raise lost(self._unit)
            case Standing.BEFORE:
                return False

    def hold(self, connection: Connection, relation: Relation) -> TargetTable:
        """See `Applying`."""
        return self._tables.hold(connection, relation)

    def takes(self, connection: Connection, table: TargetTable) -> bool:
        """See `Applying`."""
        return self._tables.may_take(connection, table)

    def loaded(self, table: StagedTable) -> None:
        """See `Applying`."""
        self._loaded.append(table)

    def end(
        self, connection: Connection, staged: Sequence[StagedTable], relations: Sequence[Relation], row_count: int
    ) -> tuple[StagedTable, ...]:
        """Commit the unit, or the staging where nothing went straight into a table. Errors: `DirectRefused`,
        `OwnershipLost`; those of `require_held`.
        """
        if not self._loaded:
            connection.execute("COMMIT")
            return tuple(staged)
        found = sum(table.inserts for table in (*self._loaded, *staged))
        if not found == row_count == self._unit.row_count:
            raise DirectRefused(f"{found} insertions in {row_count} rows of {self._unit.row_count}")
        if staged and not merge_here(connection, self._session, staged, relations, mark=""):
            raise DirectRefused("some of the tables take no insertions straight")
        require_held(connection)
        require_planned(connection, self._session, self._unit)
        with self._origins.letting_go():
            if self._unit.origin is not None:
                self._origins.mark(connection, self._unit.channel, self._unit.origin)
            move(connection, self._session, self._unit)
            connection.execute("SET LOCAL synchronous_commit TO DEFAULT")
            connection.execute("COMMIT")
        return self.done
