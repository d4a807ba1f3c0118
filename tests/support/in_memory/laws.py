"""The laws of a pipeline in memory, at every moment and for each of its commits: 2, 3, 4 and 11."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState, MergePoint, StopReason
from airflow_parallel_apply.pipeline.coordinate.tasks import PARKED, ChannelWork, Kind
from airflow_parallel_apply.pipeline.model.epoch import Branch, Epoch, EpochKind, Unit
from airflow_parallel_apply.queue.model import Task
from tests.support.in_memory.history import History
from tests.support.in_memory.ledger import LedgerData
from tests.support.in_memory.target_data import REFUSED, TargetData


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A lane's view when it claimed the first task of a unit, or a view that it could have had."""

    state: CoordinatorState | None
    failed_seqno: int | None
    """The least that is marked as failed, whatever the state says."""


@dataclass(kw_only=True)
class _Seen:
    """The observations of one generation, while its tasks are there."""

    is_stop_asked: bool = False
    merging: MergePoint | None = None
    fed_epoch: int = -1


class Laws:
    """The laws of one pipeline over a finished history. Each method raises `AssertionError` with the law."""

    def __init__(self, history: History, target: TargetData, ledger: LedgerData) -> None:
        self._history = history
        self._target = target
        self._ledger = ledger
        self._reached: dict[int, int] = {}
        self._seen: dict[int, _Seen] = {}

    def extend(self, history: History) -> None:
        """The history went on."""
        self._history = history

    def forget_positions(self) -> None:
        """The target went back to an earlier state of itself."""
        self._reached.clear()

    def forget_states(self, generation: int | None = None) -> None:
        """The queue was lost, or a generation begins, whose number may have been another's."""
        if generation is None:
            self._seen.clear()
        self._seen.pop(generation or 0, None)

    def require(self, generation: int, state: CoordinatorState | None, *, bound: int) -> None:
        """Require the laws of every moment. `state`: the last generation's. `bound`: no run was to apply more."""
        seqnos = [at.seqno for at in self._target.positions]
        if self._target.branches.series is None:
            assert self._target.rows == self._history.rows_at(seqnos), "rows are not those of the positions (law 3)"
        for channel, seqno in enumerate(seqnos):
            assert seqno >= self._reached.get(channel, seqno), "a position went back (law 3)"
            self._reached[channel] = seqno
        low, high = min(seqnos, default=-1), max(seqnos, default=-1)
        for epoch in self._ledger.plan:
            if epoch.kind is EpochKind.SERIAL:
                is_passed_by_all = low >= epoch.first_seqno or high < epoch.first_seqno
                assert is_passed_by_all, f"a channel is past the serial epoch {epoch.number}, another before (law 2)"
        assert high <= bound, "a channel is beyond every run's bound (law 11)"
        if state is not None:
            self._require_state(self._seen.setdefault(generation, _Seen()), state)

    def require_of_commit(
        self, unit: Unit, begun: Begun, now: CoordinatorState | None, heads: Sequence[Task], *, in_groups: bool
    ) -> None:
        """Require the laws of a commit. `heads`: of the channels' queues. `in_groups`: under consistency `epoch`."""
        if in_groups:
            seqnos = [at.seqno for at in self._target.positions]
            assert len(set(seqnos)) == 1, "a transaction of the source is visible in part (law 4, epoch)"
        if begun.failed_seqno is not None:
            for epoch in self._applied(unit):
                assert epoch.first_seqno <= begun.failed_seqno, (
                    f"the epoch at {epoch.first_seqno} was begun behind a failure at {begun.failed_seqno} (law 4)"
                )
        merging = None if begun.state is None else begun.state.merging
        if isinstance(unit.kind, Branch):
            assert merging is None, "a branch was begun while the channels merge"
            return
        if now is None or now.merging is None or now.merging != merging:
            return
        under_way = [head for head in heads if head.at < PARKED and head.value["kind"] != Kind.BARRIER]
        assert not under_way, f"channels were to be drained, and a branch was under way: {under_way}"

    def _require_state(self, seen: _Seen, state: CoordinatorState) -> None:
        failure = state.failure
        assert failure is None or REFUSED in failure.message, f"failed, and nothing was refused: {failure}"
        assert not seen.is_stop_asked or state.stop_reason is StopReason.ASKED, "a stop that was asked for is no more"
        is_same = state.merging is not None and state.merging == seen.merging
        assert not is_same or state.fed_epoch == seen.fed_epoch, "fed while the channels merge"
        seen.is_stop_asked = state.stop_reason is StopReason.ASKED
        seen.merging, seen.fed_epoch = state.merging, state.fed_epoch

    def _applied(self, unit: Unit) -> list[Epoch]:
        return [epoch for epoch in self._ledger.plan if unit.after_seqno < epoch.first_seqno <= unit.last_seqno]


def failed_seqno(heads: Sequence[Task], seqnos: Sequence[int]) -> int | None:
    """The least seqno of a head that is marked as failed: the first that its channel has not applied."""
    failed = [ChannelWork.of_task(head) for head in heads if head.err]
    return min((max(work.first_seqno, seqnos[work.channel] + 1) for work in failed), default=None)
