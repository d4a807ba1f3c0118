"""Decides who may move a position: the answers that a pipeline's state gives, and the states that follow it (law 3).

All are functions of one version of the positions table; `PositionsTable.update` makes the next version of what they
return, or calls them again on a newer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from airflow_parallel_apply.pipeline.errors import ConfigurationError, OwnershipLost, PlanError
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.model.epoch import Branch, Unit
from airflow_parallel_apply.pipeline.model.position import Position, all_equal, low_watermark
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.delta.known import KnownTable, with_known
from airflow_parallel_apply.pipeline.target.delta.state import Decided, State


class Standing(Enum):
    """The state of a unit's positions."""

    BEFORE = "before"
    """At its start and held by its token: it may be applied."""
    DONE = "done"
    """At its end, whoever moved them."""
    LOST = "lost"
    """Anything else."""


def standing(state: State, unit: Unit) -> Standing:
    """Compare a unit with the positions that it moves."""
    moved = [at for at in state.positions if at.channel in unit.moved]
    if moved and all(at.seqno == unit.last_seqno for at in moved):
        return Standing.DONE
    is_whole = isinstance(unit.kind, Branch) or len(state.positions) == unit.channels
    is_ours = all(
        (at.seqno, at.generation, at.claim) == (unit.after(at.channel), unit.generation, unit.token) for at in moved
    )
    return Standing.BEFORE if moved and is_whole and is_ours else Standing.LOST


def owned(state: State, generation: int, *, ledger: str) -> State:
    """A generation owns the positions; a later one keeps them. Errors: `ConfigurationError`."""
    if state.generation:
        require_ledger(state, ledger)
    if generation < state.generation:
        return state
    positions = tuple(replace(at, generation=generation) for at in state.positions)
    return replace(state, generation=generation, ledger=ledger, positions=positions, parts=())


def laid_out(state: State, *, log_id: str, routing: Routing, generation: int, ledger: str) -> State:
    """A position for each channel of a routing. Errors: `PlanError`, `ConfigurationError`."""
    if state.generation:
        require_ledger(state, ledger)
    if state.positions and state.routing_digest == routing.digest:
        return state
    if not all_equal(state.positions):
        listed = ", ".join(f"{at.channel}: {at.seqno}" for at in state.positions)
        raise PlanError(
            f"the routing changed (channels {len(state.positions)} to {routing.channels}, {routing.partitioner}) "
            f"while the channels stand at {listed}",
            hint="Run with the former parameters until all channels stop at the same seqno, then change them.",
        )
    seqno = low_watermark(state.positions) if state.positions else NO_SEQNO
    positions = tuple(
        Position(channel=channel, seqno=seqno, generation=generation, claim=None) for channel in range(routing.channels)
    )
    return replace(
        state,
        log_id=log_id,
        ledger=ledger,
        routing_digest=routing.digest,
        generation=max(state.generation, generation),
        positions=positions,
    )


def taken(state: State, channel: int | None, *, generation: int, token: str, routing_digest: str | None) -> State:
    """A claim holds a channel, or all. Errors: `OwnershipLost`, `ConfigurationError`."""
    require_generation(state, generation)
    if routing_digest is not None and routing_digest != state.routing_digest:
        raise OwnershipLost("the pipeline was routed anew", hint="Clear the task open with everything downstream.")
    if not any(channel in (None, at.channel) for at in state.positions):
        raise ConfigurationError("the target has no position for the channel", hint="Clear the task open.")
    positions = tuple(
        replace(at, generation=generation, claim=token) if channel in (None, at.channel) else at
        for at in state.positions
    )
    return replace(state, positions=positions)


def part_taken(state: State, unit: Unit, scope: str) -> State:
    """A claim stages a part of a group. Errors: `OwnershipLost`."""
    require_generation(state, unit.generation)
    others = tuple(one for one in state.parts if one[0] != scope)
    return replace(state, parts=(*others, (scope, unit.token)))


def with_decision(state: State, unit: Unit, decided: Decided, tables: Sequence[KnownTable]) -> State:
    """The unit will be in the tables. Errors: `OwnershipLost`."""
    if standing(state, unit) is Standing.DONE or decided in state.decided:
        return state
    if standing(state, unit) is Standing.LOST or state.decided_of(decided.scope):
        raise lost(unit)
    return replace(state, decided=(*state.decided, decided), tables=with_known(state.tables, tables))


def without_decision(state: State, unit: Unit, decided: Decided) -> State:
    """The unit will not be in the tables; only the claim that decided it may say so, in its own generation: others may
    bring it in as soon as they own the positions or hold the channel.
    """
    held = (unit.generation, decided.token)
    if any((at.generation, at.claim) != held for at in state.positions if decided.scope in (None, at.channel)):
        return state
    return replace(state, decided=tuple(one for one in state.decided if one != decided))


def moved(state: State, unit: Unit) -> State:
    """A unit without changes is done. Errors: `OwnershipLost`."""
    if standing(state, unit) is Standing.DONE:
        return state
    if standing(state, unit) is Standing.LOST or state.decided_of(unit.channel):
        raise lost(unit)
    for channel in unit.moved:
        state = state.with_position(replace(state.positions[channel], seqno=unit.last_seqno))
    return state


def finished(state: State, decided: Decided, tables: Sequence[KnownTable]) -> State:
    """A decided unit is in the tables, at these versions. As it is where another one was faster to say so."""
    if decided not in state.decided:
        return state
    positions = tuple(
        replace(at, seqno=decided.last_seqno) if decided.scope in (None, at.channel) else at for at in state.positions
    )
    left = tuple(one for one in state.decided if one != decided)
    return replace(state, positions=positions, decided=left, tables=with_known(state.tables, tables))


def require_generation(state: State, generation: int) -> None:
    """Raise `OwnershipLost` for a generation that is over."""
    if state.generation != generation:
        raise OwnershipLost(
            f"generation {generation} of the pipeline is over: another run took it",
            hint="Clear the task open with everything downstream.",
        )


def require_ledger(state: State, ledger: str) -> None:
    """Raise `ConfigurationError` where the pipeline's ledger is another one."""
    if state.ledger != ledger:
        raise ConfigurationError(
            f"the ledger of the pipeline is {state.ledger or 'unknown'}, not {ledger or 'at the target'}",
            hint="Name its own: ledger_conn_id, --ledger.",
        )


def lost(unit: Unit) -> OwnershipLost:
    """The error of a unit whose positions are neither at its start under its claim nor at its end."""
    return OwnershipLost(
        f"the position is no longer this claim's to move from {unit.after_seqno} to {unit.last_seqno}",
        channel=unit.channel,
        seqno=unit.last_seqno,
    )
