"""Positions: how far each channel is, who may move it, and the conditional move that every commit ends with (law 3)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

import pymysql
from pymysql.constants import ER

from airflow_parallel_apply.pipeline.errors import ConfigurationError, OwnershipLost, PlanError, Unavailable
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.model.epoch import Branch, Unit
from airflow_parallel_apply.pipeline.model.position import Position, all_equal, low_watermark
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.lost_positions import positions_lost
from airflow_parallel_apply.pipeline.target.mariadb.diagnosis import code_of
from airflow_parallel_apply.pipeline.target.mariadb.holders import Holder, end_holders, holds
from airflow_parallel_apply.pipeline.target.mariadb.naming import DATABASE, StagingOwner, claim_tag
from airflow_parallel_apply.pipeline.target.mariadb.quoting import quoted
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.staging import drop_foreign_staging, foreign_to
from airflow_parallel_apply.pipeline.target.relations import Relations

_LOCK_TRIES: Final = 5
_ABSENT: Final = (ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR)
_CLEAR_OPEN: Final = "Clear the task open with everything downstream."


class Standing(Enum):
    """The state of a unit's positions."""

    BEFORE = "before"
    """At its start and held by its token: it may be applied."""
    DONE = "done"
    """At its end, whoever moved them."""
    LOST = "lost"
    """Anything else."""


def read_positions(session: Session, *, lock: bool = False) -> tuple[Position, ...]:
    """In channel order; none where there is no table of them. Errors: the driver's own."""
    found = _if_there(
        session,
        f"SELECT channel, seqno, generation, claim FROM {DATABASE}.position WHERE pipeline = %s ORDER BY channel"
        f"{' FOR UPDATE' if lock else ''}",
        [session.pipeline],
    )
    return tuple(
        Position(channel=channel, seqno=seqno, generation=generation, claim=claim)
        for channel, seqno, generation, claim in found
    )


def settled_positions(session: Session) -> tuple[Position, ...]:
    """The same, not before they are on the server's disk: what is seen committed lies before this transaction in the
    server's log, and this one waits for the disk. Errors: the driver's own.
    """
    found = read_positions(session)
    if not found:
        return ()
    name = f"pa:settle:{uuid.uuid4().hex}"
    with session.atomic():
        session.execute(
            f"INSERT INTO {DATABASE}.holder (name, pipeline, claim) VALUES (%s, %s, '')", [name, session.pipeline]
        )
        session.execute(f"DELETE FROM {DATABASE}.holder WHERE name = %s", [name])
    return found


def standing(session: Session, unit: Unit, *, lock: bool = False) -> Standing:
    """Compare a unit with the positions that it moves. Errors: the driver's own."""
    found = read_positions(session, lock=lock)
    positions = [position for position in found if position.channel in unit.moved]
    if positions and all(position.seqno == unit.last_seqno for position in positions):
        return Standing.DONE
    ours = (isinstance(unit.kind, Branch) or len(found) == unit.channels) and all(
        position.seqno == unit.after(position.channel)
        and position.generation == unit.generation
        and position.claim == unit.token
        for position in positions
    )
    return Standing.BEFORE if positions and ours else Standing.LOST


def move(session: Session, unit: Unit) -> None:
    """Move the unit's positions to its end, each from its own seqno, or raise `OwnershipLost`: the caller's transaction
    must then roll back. Errors: the driver's own.
    """
    for channel in unit.moved:
        moved = session.execute(
            f"UPDATE {DATABASE}.position SET seqno = %s WHERE pipeline = %s AND channel = %s AND seqno = %s"
            " AND generation = %s AND claim = %s",
            [unit.last_seqno, session.pipeline, channel, unit.after(channel), unit.generation, unit.token],
        )
        if moved.rowcount != 1:
            raise lost(unit)


def routed(session: Session, ledger: str) -> tuple[str, int]:
    """Routing digest and generation of the pipeline's positions; empty and 0 where it is not known here. `ledger`: the
    database of its ledger. Errors: `ConfigurationError` where that is another one.
    """
    with session.errors("read positions"):
        found = _registered(session, "routing_digest, generation, ledger")
    if found is None:
        return "", 0
    digest, generation, known = str(found[0]), found[1], str(found[2])
    if known != ledger:
        raise ConfigurationError(
            f"the ledger of pipeline {session.pipeline} is in database {known}, not in database {ledger}",
            hint="Name its own: ledger_conn_id, --ledger. After a ledger was moved with all its rows, run at the "
            f"target: UPDATE {DATABASE}.pipeline SET ledger = '{ledger}' WHERE pipeline = '{session.pipeline}'.",
        )
    return digest, generation


def read_log_id(session: Session) -> str:
    """See `Target.log_id`."""
    with session.errors("read positions"):
        found = _registered(session, "log_id")
    return "" if found is None else str(found[0])


def lay_out(session: Session, *, log_id: str, routing: Routing, generation: int, ledger: str) -> int:
    """See `Target.lay_out`."""
    with session.errors("route"):
        # Outside of the transaction below: who ends sessions waits for them.
        end_holders(session)
    with session.transaction("route"):
        names = [session.pipeline, log_id, ledger]
        session.execute(
            f"INSERT INTO {DATABASE}.pipeline (pipeline, log_id, ledger) VALUES (%s, %s, %s)"
            " ON DUPLICATE KEY UPDATE pipeline = VALUES(pipeline)",
            names,
        )
        digest, _ = routed(session, ledger)
        positions = read_positions(session, lock=True)
        if positions and digest == routing.digest:
            return low_watermark(positions)
        if not all_equal(positions):
            raise PlanError(
                f"the routing changed (channels {len(positions)} to {routing.channels}, {routing.partitioner}) "
                f"while the channels stand at {_listed(positions)}",
                hint="Run with the former parameters until all channels stop at the same seqno, then change them.",
            )
        seqno = low_watermark(positions) if positions else NO_SEQNO
        session.execute(f"DELETE FROM {DATABASE}.position WHERE pipeline = %s", [session.pipeline])
        for channel in range(routing.channels):
            session.execute(
                f"INSERT INTO {DATABASE}.position (pipeline, channel, seqno, generation) VALUES (%s, %s, %s, %s)",
                [session.pipeline, channel, seqno, generation],
            )
        session.execute(
            f"UPDATE {DATABASE}.pipeline SET routing_digest = %s, channels = %s,"
            " generation = GREATEST(generation, %s) WHERE pipeline = %s",
            [routing.digest, routing.channels, generation, session.pipeline],
        )
        return seqno


def are_whole(session: Session) -> bool:
    """True if there are as many positions as the pipeline was routed to. Errors: the driver's own."""
    found = _registered(session, "channels")
    return found is not None and found[0] == len(read_positions(session))


def require_known(session: Session, relations: Relations) -> None:
    """Require all positions of a pipeline that had an owner; or none, if no table has rows. Errors: `TargetError`."""
    with session.errors("route"):
        if read_positions(session):
            if are_whole(session):
                return
            raise positions_lost(f"database {DATABASE}", pipeline=session.pipeline)
        for schema, table in sorted(relations.all_names()):
            place = session.address.place_of(schema, table)
            if _if_there(session, f"SELECT 1 FROM {quoted(*place)} LIMIT 1"):
                raise positions_lost(f"database {DATABASE}", f"{schema}.{table}", pipeline=session.pipeline)


def own(session: Session, generation: int) -> None:
    """See `Target.own`. It ends the former holders' sessions first, since one that stands still between its merge and
    its commit would hold the position's lock for ever; and those that began meanwhile. Bounded.
    """
    names = [generation, session.pipeline, generation]
    with session.errors("own"):
        for _ in range(_LOCK_TRIES):
            end_holders(session)
            try:
                with session.atomic():
                    for table, claims in (("pipeline", ""), ("position", ", claim = NULL")):
                        session.execute(
                            f"UPDATE {DATABASE}.{table} SET generation = %s{claims}"
                            " WHERE pipeline = %s AND generation < %s",
                            names,
                        )
            except pymysql.MySQLError as error:
                if code_of(error) != ER.LOCK_WAIT_TIMEOUT:
                    raise
                continue
            found = _registered(session, "generation")
            if found is not None and found[0] == generation:
                end_holders(session)
            # What a later generation staged has its number.
            drop_foreign_staging(session, lambda owner: owner.generation <= generation)
            return
    raise Unavailable("another session holds the positions' locks", op="own", pipeline=session.pipeline)


def take(
    session: Session,
    channel: int | None,
    *,
    generation: int,
    token: str,
    routing_digest: str | None = None,
    group: int | None = None,
) -> Position:
    """See `Target.take`. Sessions are ended before the claim is written, since one may hold its lock, and after it,
    since one may have begun to merge in between.
    """
    with session.errors("take", channel=channel):
        session.become(channel, token)
        end_holders(session, holds(channel, token, group))
        with session.atomic():
            _require_generation(session, generation, routing_digest)
            one = "" if channel is None else " AND channel = %s"
            places: Sequence[object] = [session.pipeline, *([] if channel is None else [channel])]
            session.execute(
                f"UPDATE {DATABASE}.position SET generation = %s, claim = %s WHERE pipeline = %s{one}"
                " AND generation <= %s",
                [generation, token, *places, generation],
            )
            found = [at for at in read_positions(session) if channel in (None, at.channel) and at.claim == token]
        if (channel is None or not found) and not are_whole(session):
            raise positions_lost(f"database {DATABASE}", pipeline=session.pipeline)
        if not found:
            raise _generation_lost(generation)
        end_holders(session, holds(channel, token, group))
        drop_foreign_staging(session, foreign_to(channel, token, group))
    return min(found, key=lambda position: position.seqno)


def take_part(session: Session, unit: Unit) -> None:
    """See `Target.take_part`; nothing is prepared here."""
    claim = claim_tag(unit.token)

    def stages(holder: Holder) -> bool:
        return (holder.group, holder.channel) == (unit.group, unit.channel) and holder.claim != unit.token

    def is_former(owner: StagingOwner) -> bool:
        return (owner.group, owner.channel) == (unit.group, unit.channel) and owner.claim != claim

    with session.errors("take", channel=unit.channel):
        with session.atomic():
            _require_generation(session, unit.generation, None)
        end_holders(session, stages)
        drop_foreign_staging(session, is_former)


def is_held(session: Session, unit: Unit) -> bool:
    """True if the claim that a unit is staged under is nobody else's by now; of a group's part, if its generation
    lasts. Errors: the driver's own.
    """
    if unit.group is not None:
        found = _registered(session, "generation")
        return found is not None and found[0] == unit.generation
    return all(
        position.claim == unit.token
        for position in read_positions(session)
        if unit.channel is None or position.channel == unit.channel
    )


def lost(unit: Unit) -> OwnershipLost:
    """The error of a unit whose positions are neither at its start under its claim nor at its end."""
    return OwnershipLost(
        f"the position is no longer this claim's to move from {unit.after_seqno} to {unit.last_seqno}",
        channel=unit.channel,
        seqno=unit.last_seqno,
    )


def _require_generation(session: Session, generation: int, routing_digest: str | None) -> None:
    found = _registered(session, "generation, routing_digest", lock=True)
    if found is None or found[0] != generation:
        raise _generation_lost(generation)
    if routing_digest is not None and found[1] != routing_digest:
        raise OwnershipLost("the pipeline was routed anew since this lane began", hint=_CLEAR_OPEN)


def _generation_lost(generation: int) -> OwnershipLost:
    return OwnershipLost(f"generation {generation} of the pipeline is over: another run took it", hint=_CLEAR_OPEN)


def _registered(session: Session, columns: str, *, lock: bool = False) -> tuple[Any, ...] | None:
    """Columns of the pipeline's row; None where there is none, or no table. Errors: the driver's own."""
    sharing = " LOCK IN SHARE MODE" if lock else ""
    query = f"SELECT {columns} FROM {DATABASE}.pipeline WHERE pipeline = %s{sharing}"
    return next(iter(_if_there(session, query, [session.pipeline])), None)


def _if_there(session: Session, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """The rows of a query; none where there is no such table. Errors: the driver's own."""
    try:
        return session.rows(query, values)
    except pymysql.MySQLError as error:
        if code_of(error) in _ABSENT:
            return []
        raise


def _listed(positions: Sequence[Position]) -> str:
    return ", ".join(f"{position.channel}: {position.seqno}" for position in positions)
