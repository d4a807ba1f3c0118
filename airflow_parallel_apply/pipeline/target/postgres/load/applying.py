"""Applying rows where they are loaded, in the transaction of one attempt of a Spark task: what comes before its end,
which is a branch's (`preparing`) or a unit's (`committing`).

Insertions go straight into their table, with no staging between, where no value may be stored as another one than came,
and where nothing but its key tells a table's rows apart, or as long as nothing else comes for it. What else there is is
staged, and merged in the same transaction. What is refused there is gone, with all that the attempt read.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Protocol

import psycopg

from airflow_parallel_apply.pipeline.errors import ParallelApplyError, RetryableError, TargetError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import StagedTable
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.pipeline.target.postgres.merge.merge import merge_parts
from airflow_parallel_apply.pipeline.target.postgres.merge.missing_rows import MissingRows
from airflow_parallel_apply.pipeline.target.postgres.merge.parts import Part, describe_parts
from airflow_parallel_apply.pipeline.target.postgres.merge.reinserting import Reinserting
from airflow_parallel_apply.pipeline.target.postgres.merge.side_writes import SideWrites
from airflow_parallel_apply.pipeline.target.postgres.redefine.applied_tables import hold_applied
from airflow_parallel_apply.pipeline.target.postgres.redefine.columns_ahead import require_own_columns
from airflow_parallel_apply.pipeline.target.postgres.redefine.expressions import require_computed_alike
from airflow_parallel_apply.pipeline.target.postgres.replica_role import be_replica
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.staging.exact import inexact_columns
from airflow_parallel_apply.pipeline.target.postgres.staging.narrow import narrow_columns
from airflow_parallel_apply.pipeline.target.postgres.statements import statement

_logger = logging.getLogger(__name__)


class Applying(Protocol):
    """How one attempt applies what it loads. Used once, inside its transaction."""

    def hold(self, connection: Connection, relation: Relation) -> TargetTable:
        """The table of a relation, as in `hold_applied`; errors as there, too."""
        ...

    def takes(self, connection: Connection, table: TargetTable) -> bool:
        """True if insertions may go straight into a table, in this transaction. Errors: as `describe_parts`."""
        ...

    def loaded(self, table: StagedTable) -> None:
        """So much went straight into a table."""
        ...


class StraightTables:
    """Tables into which insertions may go straight. `patience`: the statement that says how long they may wait for
    locks.
    """

    def __init__(self, session: Session, *, patience: str) -> None:
        self._session = session
        self._patience = patience
        self._is_patient = False
        self._is_replica: bool | None = None

    def hold(self, connection: Connection, relation: Relation) -> TargetTable:
        """See `Applying.hold`."""
        if not self._is_patient:
            connection.execute(statement("branches", self._patience))
            self._is_patient = True
        (table,) = hold_applied(connection, [relation], pipeline=self._session.pipeline)
        return table

    def may_take(self, connection: Connection, table: TargetTable) -> bool:
        """See `Applying.takes`."""
        if table.is_guarded(as_replica=True) or table.lost_columns:
            return False
        columns = [table.columns[column.name] for column in table.relation.columns if column.name in table.columns]
        if any(column.generated for column in columns) or inexact_columns(table) or narrow_columns(table):
            return False
        if self._is_replica is None:
            self._is_replica = be_replica(connection)
        if self._is_replica:
            require_own_columns(connection, self._session, [table])
            require_computed_alike(connection, [table])
        return self._is_replica


def merge_here(
    connection: Connection, session: Session, staged: Sequence[StagedTable], relations: Sequence[Relation], *, mark: str
) -> bool:
    """Merge what the transaction has staged into its tables, if nothing is in the way: what was begun is undone where
    something is. `mark`: the name of the branch that it becomes; empty where it becomes none. Errors: psycopg's own,
    where the connection is lost.
    """
    by_id = {relation.relation_id: relation for relation in relations}
    try:
        with connection.transaction():
            connection.execute(statement("branches", "patience"))
            if not be_replica(connection):
                raise _NotHere("the role may not apply as a replica")
            parts = describe_parts(connection, session, staged, [by_id[table.relation_id] for table in staged])
            _require_plain(parts)
            _merge(connection, session, parts, {(relation.schema, relation.table) for relation in relations})
            if mark:
                connection.execute(statement("branches", "mark"), {"name": mark, "pipeline": session.pipeline})
    except (_NotHere, MissingRows, TargetError, RetryableError) as error:
        return _is_left_staged(error)
    except psycopg.Error as error:
        if connection.closed:
            raise
        return _is_left_staged(error)
    return True


def _merge(
    connection: Connection, session: Session, parts: Sequence[Part], followed: Collection[tuple[str, str]]
) -> None:
    beside = SideWrites(connection, session, followed=lambda: followed, as_replica=True)
    merge_parts(connection, parts, reinserting=Reinserting(as_replica=True), beside=beside)
    beside.require_nothing_left()


class _NotHere(ParallelApplyError):
    """The rows need something that only the commit of the whole unit or group can do."""


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
    _logger.info("what is loaded stays staged: %s", error)
    return False
