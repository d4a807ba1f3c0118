"""A target in memory: positions and the rows of one table, moved together, and what Spark would stage for them.

It holds what it is told to strictly: an insertion needs the key to be free, an update or a deletion needs its row, so
that a change that is lost or repeated is seen where it happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.errors import (
    BranchesLost,
    DirectRefused,
    LogError,
    OwnershipLost,
    PlanError,
    StagingLost,
    TargetError,
    Unavailable,
)
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Operation
from airflow_parallel_apply.pipeline.model.epoch import Branch, GroupPart, StagedTable, StagedUnit, Unit
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.model.position import Position, all_equal, low_watermark
from airflow_parallel_apply.pipeline.model.removal import Removal
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.expectation import Expectation
from airflow_parallel_apply.pipeline.target.protocol import Pending, Recopied, TargetIdentity
from airflow_parallel_apply.pipeline.target.steps import Capability, Merge, Replay, Step, Truncate
from tests.support.in_memory.branches import pause_in_series
from tests.support.in_memory.rows import LogRow, Rows, is_of, net_by_channel, net_of
from tests.support.in_memory.target_data import Staged, TargetData

_names = count()


class MemoryTarget:
    """Implements `Target` over a `TargetData`, which several of them may share in one thread."""

    def __init__(self, data: TargetData, *, require_planned: Callable[[Unit], bool] = lambda unit: True) -> None:
        """`require_planned`: asked in the transaction of a commit, where the ledger is in the same database."""
        self._data = data
        self._is_planned = require_planned
        self._channels: frozenset[int] | None = frozenset()
        self._token = ""
        self._part: GroupPart | None = None
        self._is_ended = False
        data.sessions.add(self)

    def end(self) -> None:
        """End the session: its next call is told so, and the one after that has a new one."""
        self._is_ended = True

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.TRUNCATE, Capability.REPLAY, Capability.PREPARE})

    # --- set-up ---

    def is_installed(self) -> bool:
        return True

    def migrate(self) -> tuple[str, ...]:
        return ()

    def identity(self) -> TargetIdentity:
        return TargetIdentity(server="memory", database="memory")

    def drop(self, *, force: bool) -> Removal:
        raise NotImplementedError

    def findings(self, expected: Expectation) -> tuple[Finding, ...]:
        return ()

    def branch_findings(self, branches: int) -> tuple[Finding, ...]:
        return ()

    def colocation(self, tables: TablePatterns) -> tuple[tuple[str, ...], ...]:
        return ()

    def log_id(self) -> str:
        return self._data.log_id

    def recopied(self) -> tuple[Recopied, ...]:
        return ()

    # --- positions ---

    def positions(self, *, durable: bool = False) -> tuple[Position, ...]:
        self._require_session()
        return tuple(self._data.positions)

    def pending(self) -> Pending:
        return self._data.branches.pending

    def held_up(self) -> tuple[Finding, ...]:
        return ()

    def generation(self) -> int:
        self._require_session()
        return self._data.generation

    def own(self, generation: int) -> None:
        self._require_session()
        self._end_others(None)
        if generation >= self._data.generation:
            self._data.generation, self._data.staging = generation, {}
            self._data.positions = [replace(at, generation=generation) for at in self._data.positions]
            self._settle(None)

    def routing_digest(self) -> str:
        self._require_session()
        return self._data.routing_digest

    def lay_out(self, *, log_id: str, routing: Routing, generation: int) -> int:
        self._require_session()
        self._end_others(None)
        self._data.finish()
        before = self._data.positions
        if before and self._data.routing_digest == routing.digest:
            return low_watermark(before)
        if not all_equal(before):
            raise PlanError("the routing changed while the channels stand at different seqnos")
        seqno = low_watermark(before) if before else NO_SEQNO
        self._data.positions = [
            Position(channel=channel, seqno=seqno, generation=generation, claim=None)
            for channel in range(routing.channels)
        ]
        self._data.routing_digest, self._data.log_id = routing.digest, log_id
        self._data.generation = max(self._data.generation, generation)
        return seqno

    def take(
        self,
        channel: int | None,
        *,
        generation: int,
        token: str,
        routing_digest: str | None = None,
        group: int | None = None,
    ) -> Position:
        self._require_session()
        if generation != self._data.generation:
            raise OwnershipLost(f"generation {generation} of the pipeline is over")
        if routing_digest is not None and routing_digest != self._data.routing_digest:
            raise OwnershipLost("the pipeline was routed anew")
        self._channels, self._token, self._part = (None if channel is None else frozenset({channel})), token, None
        self._end_others(self._channels, group)
        if channel is None:
            self._settle(group)
        taken = [at for at in self._data.positions if channel is None or at.channel == channel]
        for at in taken:
            self._data.positions[at.channel] = replace(at, generation=generation, claim=token)

        def stays(staged: Staged) -> bool:
            if staged.group is not None:
                return channel is not None or (group is not None and staged.group >= group)
            return staged.token == token or not (channel is None or staged.channel is None or staged.channel == channel)

        self._data.staging = {name: staged for name, staged in self._data.staging.items() if stays(staged)}
        return min((self._data.positions[at.channel] for at in taken), key=lambda at: at.seqno)

    def take_part(self, unit: Unit) -> bool:
        self._require_session()
        if unit.generation != self._data.generation:
            raise OwnershipLost(f"generation {unit.generation} of the pipeline is over")
        assert isinstance(unit.kind, GroupPart)
        for session in self._data.sessions - {self}:
            if session._part == unit.kind:
                session.end()
        self._channels, self._token, self._part = frozenset(), unit.token, unit.kind
        self._data.staging = {
            name: staged
            for name, staged in self._data.staging.items()
            if (staged.group, staged.channel) != (unit.kind.group, unit.kind.channel)
        }
        mine = [at for at in self._data.positions if unit.channel in (None, at.channel)]
        is_next = all(at.seqno == unit.after_seqno for at in mine)
        if not unit.prepares or not is_next or self._data.branches.series is not None:
            return False
        self._data.branches.roll_back_others_of(unit)
        for at in mine:
            self._data.positions[at.channel] = replace(at, generation=unit.generation, claim=unit.token)
        return True

    def leave(self) -> None:
        self._require_session()
        self._channels, self._token, self._part = frozenset(), "", None

    # --- apply ---

    def stage(self, unit: Unit, rows: Sequence[LogRow]) -> StagedUnit:
        """Do Spark's part for a unit, of whose range `rows` are: leave its own, and load their net changes."""
        self._require_session()
        mine = [row for row in rows if is_of(unit, row)]
        if len(mine) != unit.row_count:
            raise LogError(f"the unit has {len(mine)} rows, its plan says {unit.row_count}")
        held = [at for at in self._data.positions if at.channel in unit.moved]
        if any(at.claim != unit.token for at in held):
            raise OwnershipLost("the claim was lost", channel=unit.channel)
        if unit.is_direct:
            return self._commit_directly(unit, mine)
        if unit.prepares and (branches := self._prepare(unit, mine)):
            return StagedUnit(unit=unit, tables=branches, row_count=unit.row_count, seconds=0.0)
        name = f"s{next(_names)}"
        self._data.staging[name] = Staged(unit.channel, unit.token, net_of(mine), unit.group)
        table = StagedTable(relation_id=0, staging=name, inserts=0, updates=0, deletes=0, has_unsent=False)
        return StagedUnit(unit=unit, tables=(table,), row_count=unit.row_count, seconds=0.0)

    def _prepare(self, unit: Unit, mine: Sequence[LogRow]) -> tuple[StagedTable, ...]:
        """Apply and prepare each channel's rows; nothing where that is for the commit of the whole group to do."""
        held = [at for at in self._data.positions if unit.channel in (None, at.channel)]
        if any((at.seqno, at.generation, at.claim) != (unit.after_seqno, unit.generation, unit.token) for at in held):
            raise OwnershipLost("a newer claim took the part of the group")
        branches, nets = self._data.branches, net_by_channel(mine, unit.channels)
        if branches.is_known(unit):
            return ()
        try:
            for net in nets:
                # Each sees what is committed, and waits for nobody.
                self._data.apply(dict(self._data.rows), net)
            self._data.require_with_branches(self._data.rows, nets)
        except TargetError:
            return ()
        return tuple(branches.prepare(unit, net) for net in nets)

    def _commit_branches(self, unit: Unit, tables: Sequence[StagedTable]) -> None:
        branches, names = self._data.branches, [table.staging for table in tables if table.is_prepared]
        branches.roll_back(but=names)
        rows = dict(self._data.rows)
        try:
            for table in tables:
                if not table.is_prepared:
                    self._data.merge(rows, table.staging)
            self._data.require_unique(rows)
            self._data.require_with_branches(rows, ())
        except (TargetError, StagingLost) as error:
            branches.roll_back()
            raise BranchesLost("the branches were rolled back") from error
        if not set(names) <= set(branches.prepared):
            branches.roll_back()
            raise BranchesLost("a branch is gone")
        self._data.rows = rows
        branches.record(unit, names)
        self._data.finish(self._pause_in_series)
        for table in tables:
            self._data.staging.pop(table.staging, None)

    def _pause_in_series(self) -> None:
        pause_in_series()
        self._require_session()

    def _settle(self, from_group: int | None) -> None:
        self._data.finish()
        self._data.branches.roll_back(below_group=from_group)

    def _commit_directly(self, unit: Unit, mine: Sequence[LogRow]) -> StagedUnit:
        """Do what the loader of a unit of insertions does."""
        if not self._is_done(unit):
            rows = dict(self._data.rows)
            assert all(row.operation == Operation.INSERT for row in mine)
            try:
                for row in mine:
                    self._data.require_row(rows, row.id, row.operation)
                    rows[row.id] = row.value
                self._data.require_unique(rows)
            except TargetError as error:
                raise DirectRefused(error.message, table=error.table) from error
            self._move(unit, rows)
        table = StagedTable(
            relation_id=0, staging="", inserts=len(mine), updates=0, deletes=0, has_unsent=False, is_committed=True
        )
        return StagedUnit(unit=unit, tables=(table,), row_count=unit.row_count, seconds=0.0)

    def commit(self, unit: Unit, steps: Sequence[Step]) -> None:
        self._require_session()
        if self._is_done(unit):
            return
        rows, done = dict(self._data.rows), []
        tables = [table for step in steps if isinstance(step, Merge) for table in step.staged.tables]
        if any(table.is_prepared for table in tables):
            self._commit_branches(unit, tables)
            return
        if not isinstance(unit.kind, Branch):
            self._data.branches.roll_back()
        for step in steps:
            match step:
                case Merge(staged):
                    done += [table.staging for table in staged.tables]
                    for table in staged.tables:
                        self._data.merge(rows, table.staging)
                    self._data.require_unique(rows)
                case Truncate():
                    rows.clear()
                case Replay(batches):
                    self._data.replay(rows, batches())
                case _:
                    raise PlanError(f"{step} in memory")
        self._move(unit, rows)
        for name in done:
            del self._data.staging[name]

    def discard(self, token: str) -> None:
        self._require_session()
        self._data.staging = {name: found for name, found in self._data.staging.items() if found.token != token}

    def cancel(self) -> None:
        """Nothing here waits for others."""

    def close(self) -> None:
        self._data.sessions.discard(self)

    def _is_done(self, unit: Unit) -> bool:
        held = [at for at in self._data.positions if at.channel in unit.moved]
        if held and all(at.seqno == unit.last_seqno for at in held):
            return True
        for at in held:
            if (at.seqno, at.generation, at.claim) != (unit.after(at.channel), unit.generation, unit.token):
                raise OwnershipLost(f"the position is at {at.seqno}, no longer this claim's", channel=at.channel)
        if not self._is_planned(unit):
            raise OwnershipLost(f"no planned epoch ends at seqno {unit.last_seqno}")
        return False

    def _move(self, unit: Unit, rows: Rows) -> None:
        self._data.rows = rows
        for channel in unit.moved:
            self._data.positions[channel] = replace(self._data.positions[channel], seqno=unit.last_seqno)

    def _require_session(self) -> None:
        if self._is_ended:
            self._is_ended = False
            raise Unavailable("the session was ended")

    def _end_others(self, channels: frozenset[int] | None, group: int | None = None) -> None:
        """Those that hold one of the channels (None: all), but for this one; of those that stage for groups, where all
        are meant, the ones below `group`.
        """
        for session in self._data.sessions - {self}:
            if session._part is not None:
                if channels is None and (group is None or session._part.group < group):
                    session.end()
            elif session._token and (channels is None or session._channels is None or channels & session._channels):
                session.end()
