"""Branches of a group: transactions that Spark's workers apply and prepare side by side, and one lane commits in a
series.

::

    workers: apply, prepare ──▶ record: all names, in one transaction ──▶ commit each ──▶ positions, record deleted
                               │                                        │
             a crash here: all are rolled back        a crash here: the rest is committed

The record decides, and lies before every commit of the series in the WAL. Positions move last, so whoever reads them
is told of what is whole. `settle` brings a group that was cut off to one end or the other; whoever becomes the owner
of all positions calls it, before anything else.

Nothing is rolled back by someone who has lost the claim: he wrote it, and looked for prepared branches, on one
connection, under a session name that the next owner's `take` ends; so after that no roll-back of his comes through.
Nobody prepares under a claim that is over: a worker looks at the positions' claim in the transaction that it prepares,
and whoever takes all channels ends such sessions, of any group, once his own is written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.errors import (
    START_ANEW,
    BranchesLost,
    ConfigurationError,
    TargetError,
    Unavailable,
)
from airflow_parallel_apply.pipeline.model.epoch import StagedTable, Unit
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side, new_finding
from airflow_parallel_apply.pipeline.model.origin import CommitOrigin
from airflow_parallel_apply.pipeline.target.postgres.naming import (
    SCHEMA,
    branch_prefix,
    claim_of_branch,
    group_of_branch,
    scope_of_branch,
)
from airflow_parallel_apply.pipeline.target.postgres.positions.origin import CommitOrigins
from airflow_parallel_apply.pipeline.target.postgres.replica_role import may_be_replica
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.pipeline.target.protocol import Pending
from airflow_parallel_apply.pipeline.target.steps import Merge, Step

REFUSED: Final = "pa:refused"
"""The place of a part of which neither a branch nor staging is left."""

_SPARE: Final = 1
_finding: Final = partial(new_finding, Side.TARGET, "max_prepared_transactions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The branches of one group, from one seqno to another, that are to be committed and recorded as decided."""

    after_seqno: int
    last_seqno: int
    names: tuple[str, ...]
    origin: CommitOrigin | None
    """The origin of the commits, where there is one."""


def branch_findings(session: Session, branches: int) -> tuple[Finding, ...]:
    """See `Target.branch_findings`."""
    with session.errors("check"):
        connection = session.connection()
        row = connection.execute(statement("branches", "room"), {"prefix": branch_prefix(session.pipeline)}).fetchone()
        is_replica = may_be_replica(connection)
    if not is_replica:
        what = "without the right to set session_replication_role nothing is prepared: two_phase works as leader_merge"
        return (new_finding(Side.TARGET, "role", what, severity=Severity.WARNING),)
    allowed, taken = row or (0, 0)
    needed = branches + taken + _SPARE
    if allowed >= needed:
        return ()
    what = f"epoch_protocol=two_phase needs {needed} prepared transactions, and the server allows {allowed}"
    restart = "Restart the server after it, or use epoch_protocol=leader_merge, which needs none."
    return (_finding(what, f"ALTER SYSTEM SET max_prepared_transactions = {needed}", note=restart),)


def read_pending(session: Session) -> Pending:
    """See `Target.pending`."""
    with session.errors("read branches"):
        connection = session.connection()
        if not has_branches(connection):
            return Pending(branches=0, decided=None)
        found = _series(connection, session)
        return Pending(
            branches=len(prepared_branches(connection, session)),
            decided=None if found is None else (found.after_seqno + 1, found.last_seqno),
        )


def has_branches(connection: Connection) -> bool:
    """False where the pipeline's tables are of a release that prepared none. Errors: psycopg's own."""
    return connection.execute(statement("branches", "exists"), {"schema": SCHEMA}).fetchone() == (True,)


def without_branches(steps: Sequence[Step]) -> tuple[list[Step], tuple[str, ...]]:
    """The steps with what is staged, and the names of the branches among them. Errors: `BranchesLost` where nothing is
    left of a part.
    """
    left: list[Step] = []
    names: list[str] = []
    for step in steps:
        if isinstance(step, Merge):
            places = [table.staging for table in step.staged.tables]
            if REFUSED in places:
                raise BranchesLost("a part of the group was refused", hint="The group is staged again.")
            names += [table.staging for table in step.staged.tables if table.is_prepared]
            staged = tuple(table for table in step.staged.tables if not table.is_prepared)
            left.append(Merge(replace(step.staged, tables=staged)))
        else:
            left.append(step)
    return left, tuple(names)


def place_of(name: str, tables: Sequence[StagedTable]) -> StagedTable:
    """Return the table that stands for all that a branch applied."""
    return StagedTable(
        relation_id=tables[0].relation_id if tables else 0,
        staging=name,
        inserts=sum(table.inserts for table in tables),
        updates=sum(table.updates for table in tables),
        deletes=sum(table.deletes for table in tables),
        has_unsent=False,
        is_prepared=True,
    )


def prepared_branches(connection: Connection, session: Session) -> tuple[str, ...]:
    """All of the pipeline, by name. Errors: psycopg's own."""
    names = {"prefix": branch_prefix(session.pipeline)}
    return tuple(name for (name,) in connection.execute(statement("branches", "prepared"), names))


def record(connection: Connection, session: Session, unit: Unit, names: Sequence[str]) -> None:
    """Decide that these are committed; the caller holds the positions' locks. Errors: `BranchesLost` where one is gone;
    psycopg's own.
    """
    gone = connection.execute(statement("branches", "not_prepared"), {"names": list(names)}).fetchone()
    if gone is not None:
        raise BranchesLost(f"branch {gone[0]} is gone", hint="The group is staged again.")
    connection.execute(
        statement("branches", "record"),
        {
            "pipeline": session.pipeline,
            "after_seqno": unit.after_seqno,
            "last_seqno": unit.last_seqno,
            "names": list(names),
            "offset": None if unit.origin is None else unit.origin.offset,
            "commit_time": None if unit.origin is None else unit.origin.commit_time,
        },
    )


def settle(connection: Connection, session: Session, *, from_group: int | None = None) -> bool:
    """Commit what is recorded, and roll the others back, but for those of this group and behind it; says whether
    positions were moved. The caller has just become the owner of all positions, on this connection. Errors: those of
    `finish` and `require_none_undecided`.
    """
    if not has_branches(connection):
        return False
    found = _series(connection, session)
    if found is not None:
        finish(connection, session, found)
    require_none_undecided(connection, session)
    for name in prepared_branches(connection, session):
        if from_group is None or group_of_branch(name) < from_group:
            end_branch(connection, "ROLLBACK", name)
    return found is not None


def settle_beside(session: Session) -> None:
    """Commit what is recorded, for a caller in a transaction, inside of which no branch can be ended, who owns nothing.
    Errors: those of `finish`.
    """
    with closing(session.another()) as connection:
        found = _series(connection, session)
        if found is not None:
            finish(connection, session, found)


def remove_branches(session: Session) -> None:
    """End all branches, recorded ones by committing them, so that nothing of the pipeline is left. The record stays as
    long as the positions, for whoever continues with them. Errors: those of `end_branch`.
    """
    with closing(session.another()) as connection:
        if not has_branches(connection):
            return
        found = _series(connection, session)
        for name in () if found is None else found.names:
            end_branch(connection, "COMMIT", name)
        for name in prepared_branches(connection, session):
            end_branch(connection, "ROLLBACK", name)


def forget_branches(connection: Connection, session: Session) -> None:
    """Delete the record of a series, and all marks, with the positions. Errors: psycopg's own."""
    if has_branches(connection):
        connection.execute(statement("branches", "forget_all"), {"pipeline": session.pipeline})


def roll_back(connection: Connection, names: Collection[str]) -> None:
    """Roll back what no commit names. The caller has found that the claim is his, on this connection. Errors: those of
    `end_branch`.
    """
    for name in names:
        end_branch(connection, "ROLLBACK", name)


def roll_back_of(connection: Connection, session: Session, scopes: Collection[str], *, but_token: str) -> None:
    """Roll back what others than a claim prepared in its scopes. The caller has just taken the claim, on this
    connection, while nothing was decided. Errors: those of `end_branch`.
    """
    for name in prepared_branches(connection, session):
        if scope_of_branch(name) in scopes and claim_of_branch(name) != but_token:
            end_branch(connection, "ROLLBACK", name)


def require_none_undecided(connection: Connection, session: Session) -> None:
    """Errors: `TargetError` if somebody committed a branch by hand without a decision: the positions do not include its
    rows, which would be applied again; psycopg's own.
    """
    found = connection.execute(statement("branches", "undecided"), {"pipeline": session.pipeline}).fetchone()
    if found is not None:
        raise _undecided(found[0])


def is_decided(connection: Connection, session: Session) -> bool:
    """True if a series is to be finished. Errors: psycopg's own."""
    return _series(connection, session) is not None


def finish(connection: Connection, session: Session, series: Series) -> None:
    """Commit the branches of a series, then move the positions. Idempotent; anybody may do it. Errors: `TargetError`
    where a branch was taken away that was decided to be committed; those of `end_branch`.
    """
    origins = CommitOrigins(session)
    with origins.letting_go():
        if series.origin is not None:
            origins.mark(connection, None, series.origin)
        for name in series.names:
            end_branch(connection, "COMMIT", name)
    with connection.transaction():
        connection.execute(statement("session", "brief"))
        found = _series(connection, session, lock=True)
        if found != series:
            return
        names = {"pipeline": session.pipeline}
        lost = connection.execute(
            statement("branches", "not_committed"), {**names, "names": list(series.names)}
        ).fetchone()
        if lost is not None:
            raise _lost(series, lost[0])
        connection.execute(
            statement("branches", "move"), {**names, "after_seqno": series.after_seqno, "last_seqno": series.last_seqno}
        )
        _forget(connection, session)


def _forget(connection: Connection, session: Session) -> None:
    """Delete the record of a series and its branches' marks. Errors: psycopg's own."""
    connection.execute(statement("branches", "forget"), {"pipeline": session.pipeline})


def end_branch(connection: Connection, verb: str, name: str) -> None:
    """`verb`: COMMIT or ROLLBACK. No-op where somebody did it. Errors: `Unavailable` while somebody is about to,
    `ConfigurationError` for a branch of another role; psycopg's own.
    """
    command = sql.SQL("{} PREPARED {}").format(sql.SQL(verb), sql.Literal(name))
    try:
        connection.execute(command)
    except psycopg.errors.UndefinedObject:
        return
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        raise Unavailable(f"another session ends branch {name}") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigurationError(
            f"branch {name} was prepared by another role",
            hint=f"As that role, or as a superuser, run {verb} PREPARED '{name}' in the target's database.",
        ) from error


def _series(connection: Connection, session: Session, *, lock: bool = False) -> Series | None:
    query = statement("branches", "series_locked" if lock else "series")
    row = connection.execute(query, {"pipeline": session.pipeline}).fetchone()
    if row is None:
        return None
    after_seqno, last_seqno, names, offset, commit_time = row
    origin = None if offset is None else CommitOrigin(offset=offset, commit_time=commit_time)
    return Series(after_seqno=after_seqno, last_seqno=last_seqno, names=tuple(names), origin=origin)


def _undecided(name: str) -> TargetError:
    return TargetError(
        f"branch {name} was committed by hand, though the pipeline had not decided that: its rows are in the target, "
        "and no position includes them",
        hint=f"No run can tell which rows these are. Restore the target from a backup, or start anew. {START_ANEW}",
    )


def _lost(series: Series, name: str) -> TargetError:
    return TargetError(
        f"branch {name} of transactions {series.after_seqno + 1} to {series.last_seqno} was rolled back by hand, or "
        "is not in the copy that this database was restored from, while others of the same transactions are committed",
        hint="Rows of these transactions are missing, and no run can tell which. Restore the target from another "
        f"backup, or start anew. {START_ANEW}",
    )
