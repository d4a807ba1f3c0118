"""Positions: how far each channel is, who may move it, and the conditional move that every commit ends with (law 3)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

import psycopg
from psycopg.rows import class_row

from airflow_parallel_apply.pipeline.errors import ConfigurationError, OwnershipLost, PlanError, Unavailable
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.model.epoch import Branch, Unit
from airflow_parallel_apply.pipeline.model.position import Position, all_equal, low_watermark
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.postgres.naming import ALL_CHANNELS, SCHEMA, claim_tag, scope_tag
from airflow_parallel_apply.pipeline.target.postgres.positions.branches import (
    has_branches,
    is_decided,
    roll_back_of,
    settle,
    settle_beside,
)
from airflow_parallel_apply.pipeline.target.postgres.positions.gone_positions import positions_gone
from airflow_parallel_apply.pipeline.target.postgres.positions.origin import settle_origins
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.staging.staging import drop_foreign_staging
from airflow_parallel_apply.pipeline.target.postgres.statements import statement

_TAKE_LOCK_TIMEOUT: Final = "10s"
_LOCK_TRIES: Final = 5


class Standing(Enum):
    """The state of a unit's positions."""

    BEFORE = "before"
    """At its start and held by its token: it may be applied."""
    DONE = "done"
    """At its end, whoever moved them."""
    LOST = "lost"
    """Anything else."""


def read_positions(connection: Connection, session: Session, *, lock: bool = False) -> tuple[Position, ...]:
    """In channel order. Errors: `TargetError` where one is gone, which is not looked at with `lock`; psycopg's own."""
    query = statement("positions", "lock" if lock else "read")
    rows = connection.execute(query, {"pipeline": session.pipeline}).fetchall()
    gone = [channel for channel, seqno, *_ in rows if seqno is None]
    if gone:
        raise positions_gone(connection, session, gone)
    return tuple(
        Position(channel=channel, seqno=seqno, generation=generation, claim=claim)
        for channel, seqno, generation, claim in rows
    )


def standing(connection: Connection, session: Session, unit: Unit, *, lock: bool = False) -> Standing:
    """Compare a unit with the positions that it moves."""
    found = read_positions(connection, session, lock=lock)
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


def require_planned(connection: Connection, session: Session, unit: Unit) -> None:
    """Look into the plan of this database, see `PipelineSession.commit`. Errors: `OwnershipLost`."""
    if unit.epoch is None:
        return
    names = {"pipeline": session.pipeline, "number": unit.epoch, "last_seqno": unit.last_seqno}
    if connection.execute(statement("positions", "is_planned"), names).fetchone() is None:
        raise OwnershipLost(
            f"no planned epoch {unit.epoch} ends at seqno {unit.last_seqno}: the target has lost commits",
            channel=unit.channel,
            seqno=unit.last_seqno,
        )


def move(connection: Connection, session: Session, unit: Unit) -> None:
    """Move the unit's positions to its end, or raise `OwnershipLost`: the caller's transaction must then roll back."""
    moved = (move_one if isinstance(unit.kind, Branch) else move_all)(connection, session, unit)
    if moved != len(unit.moved):
        raise lost(unit)


def move_one(connection: Connection, session: Session, unit: Unit) -> int:
    """Move the branch's channel; returns how many positions were moved. Errors: psycopg's own."""
    names = {**_names_of(session, unit), "channel": unit.channel, "after_seqno": unit.after_seqno}
    return connection.execute(statement("positions", "move"), names).rowcount


def move_all(connection: Connection, session: Session, unit: Unit) -> int:
    """Move every channel, each from its own seqno; returns how many positions were moved. Errors: psycopg's own."""
    names = {**_names_of(session, unit), "after_seqnos": [unit.after(channel) for channel in unit.moved]}
    return connection.execute(statement("positions", "move_all"), names).rowcount


def routed(session: Session, ledger: str) -> tuple[str, int]:
    """Routing digest and generation of the pipeline's positions; empty and 0 where it is not known here. `ledger`: the
    database of its ledger, empty for this one. Errors: `ConfigurationError` where that is another one.
    """
    with session.errors("read positions"):
        try:
            query = session.connection().execute(statement("positions", "routed"), {"pipeline": session.pipeline})
        except psycopg.errors.UndefinedTable:
            return "", 0
        found: tuple[str, int, str] | None = query.fetchone()
        if found is None:
            return "", 0
        digest, generation, known = found
        if known != ledger:
            raise ConfigurationError(
                f"the ledger of pipeline {session.pipeline} is {_told_ledger(known)}, not {_told_ledger(ledger)}",
                hint="Name its own: ledger_conn_id, --ledger. After a ledger was moved with all its rows, run at the "
                f"target: UPDATE {SCHEMA}.pipeline SET ledger = '{ledger}' "
                f"WHERE pipeline = '{session.pipeline}'.",
            )
        return digest, generation


def read_log_id(session: Session) -> str:
    """See `Target.log_id`."""
    with session.errors("read positions"):
        try:
            query = session.connection().execute(statement("positions", "log_id"), {"pipeline": session.pipeline})
        except psycopg.errors.UndefinedTable:
            return ""
        row = query.fetchone()
    return "" if row is None else str(row[0])


def lay_out(session: Session, *, log_id: str, routing: Routing, generation: int, ledger: str) -> int:
    """See `Target.lay_out`."""
    with session.transaction("route") as connection:
        names: dict[str, Any] = {"pipeline": session.pipeline, "log_id": log_id, "ledger": ledger}
        names |= {"generation": generation}
        connection.execute(statement("positions", "register"), names)
        digest, _ = routed(session, ledger)
        session.end_holders(None, but_token="")
        if has_branches(connection) and is_decided(connection, session):
            settle_beside(session)
        # It raises where one is gone.
        read_positions(connection, session)
        positions = read_positions(connection, session, lock=True)
        if digest == routing.digest:
            return low_watermark(positions)
        if not all_equal(positions):
            raise PlanError(
                f"the routing changed (channels {len(positions)} to {routing.channels}, {routing.partitioner}) "
                f"while the channels stand at {_listed(positions)}",
                hint="Run with the former parameters until all channels stop at the same seqno, then change them.",
            )
        seqno = low_watermark(positions) if positions else NO_SEQNO
        names |= {"routing_digest": routing.digest, "channels": routing.channels, "seqno": seqno}
        for name in ("forget", "make", "set_routing"):
            connection.execute(statement("positions", name), names)
        settle_origins(session, routing.channels)
        return seqno


def own(session: Session, generation: int) -> None:
    """See `Target.own`. It ends the former holders' sessions first, since one that stands still between its merge and
    its commit would hold the position's lock for ever; and those that began meanwhile, before it settles what is
    prepared. Bounded: each try ends those that could hold one.
    """
    names = {"pipeline": session.pipeline, "generation": generation}
    for _ in range(_LOCK_TRIES):
        with session.errors("own"):
            # A later owner ends this session, too: see `branches`.
            session.become(None, f"generation {generation}")
            connection = session.connection()
            session.end_holders(None, but_token="")
            try:
                with connection.transaction():
                    connection.execute(statement("session", "brief"))
                    connection.execute("SET LOCAL lock_timeout = '2s'")
                    connection.execute(statement("positions", "own_pipeline"), names)
                    connection.execute(statement("positions", "own"), names)
                    is_owner = _sweep(connection, session, generation)
                    channels = _owned(connection, session, generation)
            except psycopg.errors.LockNotAvailable:
                continue
            if is_owner:
                session.end_holders(None, but_token="")
                settle(connection, session)
            session.rest()
        if channels:
            settle_origins(session, channels)
        return
    raise Unavailable("another session holds the positions' locks", op="own", pipeline=session.pipeline)


def _owned(connection: Connection, session: Session, generation: int) -> int:
    """How many positions there are, if they are this generation's. Errors: psycopg's own."""
    return sum(at.generation == generation for at in read_positions(connection, session))


def _sweep(connection: Connection, session: Session, generation: int) -> bool:
    """Drop all staging, unless a later generation staged it: that one waits for the lock on its number meanwhile. Says
    whether there is none.
    """
    row = connection.execute(statement("positions", "generation"), {"pipeline": session.pipeline}).fetchone()
    if row is None or row[0] != generation:
        return False
    drop_foreign_staging(connection, pipeline=session.pipeline, scopes=None, but_token="")
    return True


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
    scopes = None if channel is None else [scope_tag(channel), ALL_CHANNELS]
    with session.errors("take", channel=channel):
        session.become(channel, token)
        connection = session.connection()
        session.end_holders(scopes, but_token=claim_tag(token), but_from_group=group)
        with connection.transaction():
            connection.execute(statement("session", "brief"))
            connection.execute("SELECT set_config('lock_timeout', %s, true)", [_TAKE_LOCK_TIMEOUT])
            _require_generation(connection, session, generation, routing_digest)
            cursor = connection.cursor(row_factory=class_row(Position))
            cursor.execute(
                statement("positions", "take"),
                {"pipeline": session.pipeline, "channel": channel, "generation": generation, "token": token},
            )
            found = sorted(cursor, key=lambda position: position.seqno)
        if not found:
            read_positions(connection, session)
            raise generation_lost(generation)
        session.end_holders(scopes, but_token=claim_tag(token), but_from_group=group)
        if channel is None and settle(connection, session, from_group=group):
            found = sorted(read_positions(connection, session), key=lambda position: position.seqno)
        drop_foreign_staging(
            connection, pipeline=session.pipeline, scopes=scopes, but_token=token, but_from_group=group
        )
    return found[0]


def take_part(session: Session, unit: Unit) -> bool:
    """See `Target.take_part`."""
    scopes = [scope_tag(unit.channel, unit.group, prepares=prepares) for prepares in (False, True)]
    may_prepare = unit.prepares and _take_to_prepare(session, unit, scopes)
    with session.transaction("take", channel=unit.channel) as connection:
        _require_generation(connection, session, unit.generation, None)
        session.end_holders(scopes, but_token=claim_tag(unit.token))
        drop_foreign_staging(connection, pipeline=session.pipeline, scopes=scopes, but_token=unit.token)
    return may_prepare


def _take_to_prepare(session: Session, unit: Unit, scopes: Sequence[str]) -> bool:
    """Write the claim, end those who have read the former one, roll back what they prepared; in this order: see
    `branches`. False, and nothing is done, where the group is committed or about to be, or not the next one.
    """
    with session.errors("take", channel=unit.channel):
        session.become(unit.channel, unit.token, prepares_group=unit.group)
        connection = session.connection()
        with connection.transaction():
            connection.execute(statement("session", "brief"))
            connection.execute("SELECT set_config('lock_timeout', %s, true)", [_TAKE_LOCK_TIMEOUT])
            _require_generation(connection, session, unit.generation, None)
            positions = read_positions(connection, session, lock=True)
            is_next = all(at.seqno == unit.after_seqno for at in positions if unit.channel in (None, at.channel))
            may_prepare = is_next and not is_decided(connection, session)
            if may_prepare:
                names = {**_names_of(session, unit), "channel": unit.channel}
                connection.execute(statement("branches", "claim"), names)
        if may_prepare:
            session.end_holders(scopes, but_token=claim_tag(unit.token))
            roll_back_of(connection, session, scopes, but_token=claim_tag(unit.token))
        session.rest()
    return may_prepare


def is_held(session: Session, channel: int | None, token: str) -> bool:
    """True if a claim still holds its channel (None: all). Errors: `Unavailable` and the like."""
    with session.errors("read positions", channel=channel):
        positions = read_positions(session.connection(), session)
    return all(position.claim == token for position in positions if channel is None or position.channel == channel)


def lost(unit: Unit) -> OwnershipLost:
    """The error of a unit whose positions are neither at its start under its claim nor at its end."""
    return OwnershipLost(
        f"the position is no longer this claim's to move from {unit.after_seqno} to {unit.last_seqno}",
        channel=unit.channel,
        seqno=unit.last_seqno,
    )


def generation_lost(generation: int) -> OwnershipLost:
    """The error of whoever acts under a generation that is over."""
    return OwnershipLost(
        f"generation {generation} of the pipeline is over: another run took it",
        hint="Clear the task open with everything downstream.",
    )


def _names_of(session: Session, unit: Unit) -> dict[str, object]:
    return {
        "pipeline": session.pipeline,
        "last_seqno": unit.last_seqno,
        "generation": unit.generation,
        "token": unit.token,
    }


def _require_generation(
    connection: psycopg.Connection[Any], session: Session, generation: int, routing_digest: str | None
) -> None:
    row = connection.execute(statement("positions", "generation"), {"pipeline": session.pipeline}).fetchone()
    if row is None or row[0] != generation:
        raise generation_lost(generation)
    if routing_digest is not None and row[1] != routing_digest:
        raise OwnershipLost(
            "the pipeline was routed anew since this lane began", hint="Clear the task open with everything downstream."
        )


def _listed(positions: Sequence[Position]) -> str:
    return ", ".join(f"{position.channel}: {position.seqno}" for position in positions)


def _told_ledger(ledger: str) -> str:
    return f"in database {ledger}" if ledger else "in the target's own database"
