"""The coordinator's state: a value in the queue, changed by whoever finishes last, never a process.

::

                     stop asked, or all is fed
        RUNNING ──────────────────────────────▶ STOPPING ──── last acknowledgement ───▶ DRAINED
           │                                       │
           └────────── a unit failed ──────────────┴──▶ FAILED

FAILED and DRAINED end a generation; the next `open` starts another one from positions and plan (law 8). One way leads
back, from STOPPING to RUNNING: that of a target that has lost commits (`restarted`).

Beside its phase a generation may be *merging*: from the conflict that opened a merge point to the modify that closes
it. Then nothing is fed and no branch is begun. Under epoch consistency that never is: see `groups.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final

from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol
from airflow_parallel_apply.pipeline.errors import ConflictReason, FatalError


class Phase(StrEnum):
    """The phase of a generation's life."""

    RUNNING = "running"
    STOPPING = "stopping"
    DRAINED = "drained"
    FAILED = "failed"


TRANSITIONS: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.RUNNING: frozenset({Phase.STOPPING, Phase.FAILED}),
    Phase.STOPPING: frozenset({Phase.DRAINED, Phase.FAILED, Phase.RUNNING}),
    Phase.DRAINED: frozenset(),
    Phase.FAILED: frozenset(),
}


class StopReason(StrEnum):
    """The reason why stop markers were put."""

    END = "end of run"
    ASKED = "stop asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFailure:
    """The failure with the least seqno of a generation; nothing that starts above `seqno` is handed out (law 4)."""

    seqno: int
    channel: int | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePoint:
    """A conflict between channels that is being resolved: all of them are brought to `until_seqno` together, or to
    where the furthest is. `number` counts a generation's merge points from 0; `channel` met the conflict.
    """

    number: int
    channel: int
    reason: ConflictReason
    table: str | None
    until_seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorState:
    """The state that steers a generation. `until_seqno` is None while the source is being captured up to the run's
    bound. `merged_count` merge points were closed, the last at epoch `merged_epoch`; `merge_streak` of them lay close
    to the one before. `groups_ahead`: last seqno and bytes of each group that was fed and not known to be committed;
    `group_count`: of all that were fed; `staged_count`: up to it they are staged under any protocol. `is_preparing`:
    the last that was fed is prepared, and then it is the only one ahead. `store`: the one that its channels are read
    through, and why, for people.
    """

    phase: Phase
    channels: int
    fed_epoch: int
    fed_seqno: int
    until_seqno: int | None
    stop_seqno: int | None = None
    stop_reason: StopReason | None = None
    acknowledged: tuple[int, ...] = ()
    failure: UnitFailure | None = None
    merging: MergePoint | None = None
    merged_count: int = 0
    merged_epoch: int = -1
    merge_streak: int = 0
    consistency: Consistency = Consistency.CHANNEL
    protocol: EpochProtocol = EpochProtocol.LEADER_MERGE
    groups_ahead: tuple[tuple[int, int], ...] = ()
    group_count: int = 0
    staged_count: int = 0
    is_preparing: bool = False
    store: str = ""

    @property
    def in_groups(self) -> bool:
        """True if channels commit together. One alone commits whole transactions in order by itself."""
        return self.consistency is Consistency.EPOCH and self.channels > 1

    @property
    def prepares(self) -> bool:
        """True if the next group is to be prepared: none is before the group before it is committed. A generation that
        an earlier release opened may go by `auto`, which is chosen only where the target can prepare.
        """
        is_staged = self.protocol is EpochProtocol.LEADER_MERGE or self.group_count < self.staged_count
        return self.in_groups and not is_staged

    @property
    def told_protocol(self) -> str | None:
        """The protocol of the next group, for people, with how long it lasts where that is known; None where there are
        no groups.
        """
        if not self.in_groups:
            return None
        left = self.staged_count - self.group_count
        if self.protocol is EpochProtocol.LEADER_MERGE or left <= 0:
            return self.protocol
        return f"{EpochProtocol.LEADER_MERGE} for {left} more groups, {self.protocol} after them"

    def staging(self, count: int) -> CoordinatorState:
        """So many of the next groups are staged."""
        return replace(self, staged_count=max(self.staged_count, self.group_count + count))

    def enter(self, phase: Phase) -> CoordinatorState:
        """The one way from phase to phase; raises on any that the diagram does not show."""
        if phase not in TRANSITIONS[self.phase]:
            raise FatalError(f"a coordinator cannot go from {self.phase} to {phase}", op="coordinate")
        return replace(self, phase=phase)

    @property
    def bytes_ahead(self) -> int:
        """Bytes of the groups that were fed and are not known to be committed."""
        return sum(size for _, size in self.groups_ahead)

    @property
    def channels_in_turn(self) -> tuple[int, ...]:
        """The channels whose queues have the groups ahead, in the groups' order."""
        turns = range(self.group_count - len(self.groups_ahead), self.group_count)
        return tuple(dict.fromkeys(turn % self.channels for turn in turns))

    def restarted(self, *, epoch: int, seqno: int) -> CoordinatorState:
        """After the target has lost commits: what is above `seqno`, with which `epoch` ends, is to be fed. A conflict
        there comes again; a stop that was asked for stays asked for; a failure stays one, and nothing is fed.
        """
        return replace(
            self.enter(Phase.RUNNING) if self.phase is Phase.STOPPING else self,
            fed_epoch=epoch,
            fed_seqno=seqno,
            stop_seqno=None,
            acknowledged=(),
            merging=None,
            merged_count=self.merged_count + (self.merging is not None),
            stop_reason=self.stop_reason if self.stop_reason is StopReason.ASKED else None,
            groups_ahead=(),
        )

    def fed(self, *, epoch: int, seqno: int) -> CoordinatorState:
        """After tasks up to an epoch were put in the channels' queues."""
        return replace(self, fed_epoch=epoch, fed_seqno=seqno)

    def stopping(self, reason: StopReason) -> CoordinatorState:
        """With stop markers behind everything that is fed."""
        return replace(self.enter(Phase.STOPPING), stop_seqno=self.fed_seqno, stop_reason=reason)

    def acknowledge(self, channel: int) -> CoordinatorState:
        """A channel has met its stop marker; the last one drains the generation."""
        acknowledged = tuple(sorted({*self.acknowledged, channel}))
        state = replace(self, acknowledged=acknowledged)
        if len(acknowledged) == self.channels and self.phase is Phase.STOPPING:
            return state.enter(Phase.DRAINED)
        return state

    def drained(self) -> CoordinatorState:
        """All channels have met the stop, together."""
        state = self
        for channel in range(self.channels):
            state = state.acknowledge(channel)
        return state

    def fail(self, failure: UnitFailure) -> CoordinatorState:
        """Keep the failure with the least seqno; it is judged once."""
        state = self if self.phase is Phase.FAILED else self.enter(Phase.FAILED)
        if self.failure is None or failure.seqno < self.failure.seqno:
            return replace(state, failure=failure)
        return state

    def fails_below(self, seqno: int) -> bool:
        """True if a unit that starts at a seqno is held up for good (law 4)."""
        return self.failure is not None and self.failure.seqno < seqno

    def holds_up(self, first_seqnos: Iterable[int]) -> bool:
        """True if a unit may not begin now: the channels merge, or one of the epochs that it takes together starts
        above a failure.
        """
        return self.merging is not None or any(map(self.fails_below, first_seqnos))

    def merge(self, point: MergePoint, *, is_dense: bool) -> CoordinatorState:
        """Open a merge point; `is_dense`: close behind the one before."""
        if self.merging is not None:
            raise FatalError(f"merge point {self.merging.number} is open already", op="coordinate")
        return replace(self, merging=point, merge_streak=self.merge_streak + 1 if is_dense else 0)

    def merged(self, epoch: int) -> CoordinatorState:
        """Close the merge point: all channels have committed everything up to an epoch."""
        if self.merging is None:
            raise FatalError("no merge point is open", op="coordinate")
        return replace(self, merging=None, merged_count=self.merged_count + 1, merged_epoch=epoch)

    def to_json(self) -> dict[str, Any]:
        """The task's value, and what `open` shows in its XCom."""
        return {
            "phase": self.phase,
            "channels": self.channels,
            "fed_epoch": self.fed_epoch,
            "fed_seqno": self.fed_seqno,
            "until_seqno": self.until_seqno,
            "stop_seqno": self.stop_seqno,
            "stop_reason": self.stop_reason,
            "acknowledged": list(self.acknowledged),
            "failure": None
            if self.failure is None
            else {"seqno": self.failure.seqno, "channel": self.failure.channel, "message": self.failure.message},
            "merging": None if self.merging is None else asdict(self.merging),
            "merged_count": self.merged_count,
            "merged_epoch": self.merged_epoch,
            "merge_streak": self.merge_streak,
            "consistency": self.consistency,
            "protocol": self.protocol,
            "groups_ahead": [list(group) for group in self.groups_ahead],
            "group_count": self.group_count,
            "staged_count": self.staged_count,
            "is_preparing": self.is_preparing,
            "store": self.store,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> CoordinatorState:
        """Inverse of `to_json`."""
        failure, merging = value["failure"], value["merging"]
        return cls(
            phase=Phase(value["phase"]),
            channels=value["channels"],
            fed_epoch=value["fed_epoch"],
            fed_seqno=value["fed_seqno"],
            until_seqno=value["until_seqno"],
            stop_seqno=value["stop_seqno"],
            stop_reason=None if value["stop_reason"] is None else StopReason(value["stop_reason"]),
            acknowledged=tuple(value["acknowledged"]),
            failure=None if failure is None else UnitFailure(**failure),
            merging=None if merging is None else MergePoint(**{**merging, "reason": ConflictReason(merging["reason"])}),
            merged_count=value["merged_count"],
            merged_epoch=value["merged_epoch"],
            merge_streak=value["merge_streak"],
            consistency=Consistency(value.get("consistency", Consistency.CHANNEL)),
            protocol=EpochProtocol(value.get("protocol", EpochProtocol.LEADER_MERGE)),
            groups_ahead=tuple((seqno, size) for seqno, size in value.get("groups_ahead", ())),
            group_count=value.get("group_count", 0),
            staged_count=value.get("staged_count", 0),
            is_preparing=value.get("is_preparing", False),
            store=value.get("store", ""),
        )
