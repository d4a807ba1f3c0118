"""`Target` for a Delta lake.

Delta Lake has transactions of one table. A unit may change several, so its commit is *decided* in one of them, the
pipeline's positions table, and then brought into the others, by whoever lives::

    take      P: claim and token ──▶ what was decided is brought in ──▶ staging of former claims removed
    commit    P: decided, if the claim holds ──▶ T1 ──▶ T2 ──▶ … ──▶ P: position at the end, nothing decided
              └─ from here on it will be in the tables, whatever dies

Every arrow ends in one commit that is refused where another came first (`tables`). T carries, as an application
transaction for each channel, the last seqno of the unit that it has.

| what dies, or comes late | what others find, and do |
|---|---|
| a stager, anywhere | files that nobody names; the next claim of their scope sweeps them |
| the lane before P has its decision | nothing happened: the unit is staged and committed anew |
| the lane between two of the next arrows | the next `take`, or `own`, brings in the rest, from the staged files |
| the lane after P | the position says that it is done; its staged files are swept |
| a zombie before its decision | its claim is not in P any more: refused there, `OwnershipLost` |
| a zombie behind its decision | its successor brings in the same; one of both commits, the other passes over |
| a twin of a lane, or of whoever finishes | the same |
| another writer of T | the merge is tried again on what it wrote |
| T1 refuses | the lane, if it still owns P, takes its decision back: nothing happened, the run is red |
| T2 refuses when T1 has its part, or a successor is refused | it stays decided, the run is red, the next goes on |
| the machine, after any commit | each commit was on the disk, data first, before the next one was made |

What a reader of several tables sees: each table whole, at the end of some unit of each channel; T1 may be a unit ahead
of T2 for as long as the arrows between them take, under both consistencies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.errors import START_ANEW, StagingLost, TargetError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import Branch, Unit
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.model.position import Position, low_watermark
from airflow_parallel_apply.pipeline.model.removal import Removal
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.delta.applying import Applier
from airflow_parallel_apply.pipeline.target.delta.changes import changes_of
from airflow_parallel_apply.pipeline.target.delta.check import has_rows, lake_findings
from airflow_parallel_apply.pipeline.target.delta.feed import feed_changes_of
from airflow_parallel_apply.pipeline.target.delta.ownership import (
    Standing,
    finished,
    laid_out,
    lost,
    moved,
    owned,
    part_taken,
    require_ledger,
    standing,
    taken,
    with_decision,
    without_decision,
)
from airflow_parallel_apply.pipeline.target.delta.place import CONTROL, Lake
from airflow_parallel_apply.pipeline.target.delta.positions import PositionsTable
from airflow_parallel_apply.pipeline.target.delta.staging import Staging, group_of, scope_of, token_word
from airflow_parallel_apply.pipeline.target.delta.state import Decided, State
from airflow_parallel_apply.pipeline.target.delta.tables import open_table
from airflow_parallel_apply.pipeline.target.expectation import Expectation
from airflow_parallel_apply.pipeline.target.lost_positions import positions_lost
from airflow_parallel_apply.pipeline.target.protocol import Pending, Recopied, TargetIdentity
from airflow_parallel_apply.pipeline.target.relations import Relations
from airflow_parallel_apply.pipeline.target.steps import Capability, Step


class DeltaTarget:
    """See `Target`. `ledger`: names the database of the pipeline's ledger."""

    def __init__(self, lake: Lake, pipeline: str, *, relations: Relations, ledger: Callable[[], str] | None) -> None:
        self._lake = lake
        self._pipeline = pipeline
        self._relations = relations
        self._ledger = ledger
        self._positions = PositionsTable(lake, pipeline)
        self._staging = Staging(lake, pipeline)
        self._applier = Applier(lake, pipeline, relations)

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.TRUNCATE, Capability.REPLAY, Capability.DEFINE})

    # --- set-up ---
    def is_installed(self) -> bool:
        return self._positions.read() is not None

    def migrate(self) -> tuple[str, ...]:
        return (f"the positions of {self._pipeline}",) if self._positions.create() else ()

    def identity(self) -> TargetIdentity:
        return TargetIdentity(server=self._lake.options.get("AWS_ENDPOINT_URL", "lake"), database=self._lake.root)

    def drop(self, *, force: bool) -> Removal:
        del force
        if self._positions.read() is None:
            return Removal()
        self._lake.files.delete_dir(self._lake.path(self._lake.uri(CONTROL, self._pipeline)))
        return Removal(done=(f"removed the positions of {self._pipeline} from {self._lake.root}; its tables stay",))

    def findings(self, expected: Expectation) -> tuple[Finding, ...]:
        state = self._positions.read()
        known = () if state is None else state.tables
        return tuple(lake_findings(self._lake, expected, known, self._relations.definitions))

    def branch_findings(self, branches: int) -> tuple[Finding, ...]:
        del branches
        return ()

    def colocation(self, tables: TablePatterns) -> tuple[tuple[str, ...], ...]:
        del tables
        return ()

    def log_id(self) -> str:
        state = self._positions.read()
        return "" if state is None else state.log_id

    def recopied(self) -> tuple[Recopied, ...]:
        return ()

    # --- positions ---
    def positions(self, *, durable: bool = False) -> tuple[Position, ...]:
        """They are on the disk when they can be read."""
        del durable
        state = self._positions.read()
        return () if state is None else state.positions

    def pending(self) -> Pending:
        state = self._positions.read()
        if state is None or not state.decided:
            return Pending(branches=0, decided=None)
        last = max(one.last_seqno for one in state.decided)
        after = min(at.seqno for one in state.decided for at in state.positions if one.scope in (None, at.channel))
        return Pending(branches=0, decided=(after + 1, last))

    def held_up(self) -> tuple[Finding, ...]:
        return ()

    def generation(self) -> int:
        return self._of_this_ledger().generation

    def own(self, generation: int) -> None:
        state = self._positions.update(lambda found: owned(found, generation, ledger=self._ledger_name()))
        if state.generation != generation:
            return
        self._settle(None)
        self._staging.sweep(lambda _scope, _token: True, is_ours=lambda: self._state().generation == generation)
        self._positions.sweep()

    def routing_digest(self) -> str:
        return self._of_this_ledger().routing_digest

    def lay_out(self, *, log_id: str, routing: Routing, generation: int) -> int:
        if generation > 0 and not self._state().positions:
            self._require_no_rows()
        self._settle(None)
        ledger = self._ledger_name()
        state = self._positions.update(
            lambda found: laid_out(found, log_id=log_id, routing=routing, generation=generation, ledger=ledger)
        )
        return low_watermark(state.positions)

    def take(
        self,
        channel: int | None,
        *,
        generation: int,
        token: str,
        routing_digest: str | None = None,
        group: int | None = None,
    ) -> Position:
        self._positions.update(
            lambda found: taken(found, channel, generation=generation, token=token, routing_digest=routing_digest)
        )
        state = self._settle(channel)

        def is_dropped(scope: str, of_token: str) -> bool:
            number = group_of(scope)
            if number is not None:
                return channel is None and (group is None or number < group)
            is_meant = channel is None or scope in (scope_of(channel, None), scope_of(None, None))
            return is_meant and of_token != token_word(token)

        def is_ours() -> bool:
            return all(at.claim == token for at in self._state().positions if channel in (None, at.channel))

        self._staging.sweep(is_dropped, is_ours=is_ours)
        return min((at for at in state.positions if channel in (None, at.channel)), key=lambda at: at.seqno)

    def take_part(self, unit: Unit) -> bool:
        mine = scope_of(unit.channel, unit.group)
        self._positions.update(lambda found: part_taken(found, unit, mine))
        self._staging.sweep(
            lambda scope, token: scope == mine and token != token_word(unit.token),
            is_ours=lambda: (mine, unit.token) in self._state().parts,
        )
        return False

    def leave(self) -> None:
        """Nobody's session is ended here."""

    def note_tables(self, unbegun: Sequence[Relation] | None = None) -> None:
        """No-op: it knows them by their names."""

    # --- apply ---
    def commit(self, unit: Unit, steps: Sequence[Step]) -> None:
        scope = unit.channel if isinstance(unit.kind, Branch) else None
        state = self._settle(scope)
        match standing(state, unit):
            case Standing.DONE:
                return
            case Standing.LOST:
                raise lost(unit)
            case Standing.BEFORE:
                listed = feed_changes_of if self._lake.is_feed else changes_of
                changes = listed(steps, unit, self._staging, self._relations)
        if not changes:
            self._positions.update(lambda found: moved(found, unit))
            return
        tables = self._applier.prepare(state, changes, {channel: unit.after(channel) for channel in unit.moved})
        decided = Decided(scope=scope, last_seqno=unit.last_seqno, token=unit.token, changes=changes)
        state = self._positions.update(lambda found: with_decision(found, unit, decided, tables))
        if decided in state.decided:
            self._finish(state, decided, unit)

    def discard(self, token: str) -> None:
        def is_ours() -> bool:
            return all(one.token != token for one in self._state().decided)

        self._staging.sweep(lambda _scope, of_token: of_token == token_word(token), is_ours=is_ours)

    def cancel(self) -> None:
        """Nothing here waits for others."""

    def close(self) -> None:
        """Nothing is open between calls."""

    def _require_no_rows(self) -> None:
        """Require tables without rows, for a pipeline that had an owner and has no positions. Errors: `TargetError`."""
        for schema, name in sorted(self._relations.all_names()):
            table = open_table(self._lake, self._lake.table_uri(schema, name))
            if table is not None and has_rows(table, f"{schema}.{name}"):
                place = self._lake.uri(CONTROL, self._pipeline)
                raise positions_lost(place, f"{schema}.{name}", pipeline=self._pipeline)

    def _settle(self, channel: int | None) -> State:
        """Bring in what is decided of a channel, or of all."""
        state = self._state()
        for decided in state.decided_of(channel):
            self._finish(state, decided)
        return self._state() if state.decided_of(channel) else state

    def _finish(self, state: State, decided: Decided, unit: Unit | None = None) -> None:
        """Bring a decided unit in, and move its positions. `unit`: of the lane that decided it; None for all others,
        who do not know whether that lane sleeps and brings it in later. Errors: `TargetError`, `StagingLost`, and the
        lane took its decision back, if it still owns the positions and no table has anything of it.
        """
        try:
            tables = self._applier.apply(state, decided)
        except (StagingLost, TargetError) as error:
            if decided not in self._state().decided:
                # Another one has finished it, and dropped what was staged.
                return
            is_others = unit is None or self._applier.has_begun(state, decided)
            if unit is None or is_others or decided in self._taken_back(unit, decided):
                raise _stuck(decided, error) from error
            raise
        self._positions.update(lambda found: finished(found, decided, tables))
        self._staging.drop([name for change in decided.changes for name in change.files])

    def _taken_back(self, unit: Unit, decided: Decided) -> tuple[Decided, ...]:
        """Take a decision back, if that is this claim's to do; returns what is decided then."""
        return self._positions.update(lambda found: without_decision(found, unit, decided)).decided

    def _state(self) -> State:
        return self._positions.update(lambda found: found)

    def _of_this_ledger(self) -> State:
        state = self._positions.read() or State(life="")
        if state.generation:
            require_ledger(state, self._ledger_name())
        return state

    def _ledger_name(self) -> str:
        return "" if self._ledger is None else self._ledger()


def _stuck(decided: Decided, error: StagingLost | TargetError) -> TargetError:
    """The error of a decided unit that a table refuses."""
    if isinstance(error, StagingLost):
        hint = f"Somebody removed files below _parallel_apply. {START_ANEW}"
    else:
        hint = f"{error.hint or 'Correct the table.'} The next run goes on with it."
    return TargetError(
        f"the unit up to seqno {decided.last_seqno} is decided, perhaps in some of its tables already, and cannot be "
        f"brought into the others: {error.message}",
        op="commit",
        channel=decided.scope,
        seqno=error.seqno,
        table=error.table,
        column=error.column,
        hint=hint,
    )
