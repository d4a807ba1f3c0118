"""Epoch consistency in feeding: consecutive parallel epochs as groups, whose rows become visible together.

Groups double while there is a backlog, and a feed never waits to fill one: a small one first, then as much as is staged
and not committed, but at most half of what is left, since nothing is staged beside the last commit, which one session
does alone. A group that is prepared is the only one ahead, since it may lock rows of the next; it is twice as large as
what was just committed. `CoordinatorState.prepares` says which ones are. Reads nothing; the feeder knows epochs and
positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState
from airflow_parallel_apply.pipeline.coordinate.tasks import (
    PARKED,
    STOP_SEQUENCE,
    ChannelWork,
    Kind,
    Names,
    OrderedWork,
    SerialWork,
)
from airflow_parallel_apply.pipeline.model.epoch import Epoch, EpochKind
from airflow_parallel_apply.pipeline.model.position import Position, all_equal, low_watermark
from airflow_parallel_apply.queue.model import Insert

MAX_GROUPS_AHEAD: Final = 4
"""Fed and not committed: what is staged ahead. A lane with several channels to serve stages that much before it can
commit the first.
"""

_FIRST_GROUP_BYTES: Final = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """How large groups become."""

    bytes_: int = 256 * 2**20
    """Bytes that become visible together, unless one epoch is larger."""
    rows_at_once: int | None = None
    """Up to so many rows of a group are staged by one task for all channels, above that by one for each channel that
    has some. None: always by one, whose job is divided by rows instead of by channels.
    """


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive parallel epochs. `is_uneven`: some channels have committed a part of them."""

    epochs: tuple[Epoch, ...]
    is_uneven: bool = False

    @property
    def number(self) -> int:
        """The number of its last epoch."""
        return self.epochs[-1].number

    @property
    def work(self) -> SerialWork:
        """The group as a task of the queue `serial` names it."""
        return SerialWork(
            epoch=self.number,
            first_seqno=self.epochs[0].first_seqno,
            last_seqno=self.epochs[-1].last_seqno,
            rows=sum(epoch.row_count for epoch in self.epochs),
            reason=self.epochs[-1].reason,
        )

    @property
    def bytes_(self) -> int:
        """The bytes of all channels."""
        return _bytes_of(self.epochs)

    def stages(
        self, channels: int, *, rows_at_once: int | None, turn: int, prepares: bool = False
    ) -> list[ChannelWork]:
        """Return what is to be staged, or prepared: all rows at once, in the queue of the channel whose turn it is, or
        the rows of each channel that has some. Nothing where it is uneven: whoever commits it knows what is left.
        """
        rows = [sum(epoch.rows[channel] for epoch in self.epochs) for channel in range(channels)]
        if self.is_uneven or not any(rows):
            return []
        if rows_at_once is None or sum(rows) <= rows_at_once:
            kind = Kind.PREPARE_ALL if prepares else Kind.STAGE_ALL
            return [self._stage(kind, turn % channels, sum(rows), self.bytes_)]
        sizes = [sum(epoch.bytes_[channel] for epoch in self.epochs) for channel in range(channels)]
        return [
            self._stage(Kind.PREPARE if prepares else Kind.STAGE, channel, rows[channel], sizes[channel])
            for channel in range(channels)
            if rows[channel]
        ]

    def _stage(self, kind: Kind, channel: int, rows: int, size: int) -> ChannelWork:
        work = self.work
        return ChannelWork(
            kind=kind,
            channel=channel,
            epoch=work.epoch,
            first_seqno=work.first_seqno,
            last_seqno=work.last_seqno,
            rows=rows,
            bytes_=size,
        )


def with_groups(
    state: CoordinatorState, names: Names, epochs: Sequence[Epoch], positions: Sequence[Position], limits: GroupLimits
) -> tuple[CoordinatorState, list[Insert]]:
    """Feed epochs in order, as many as may be staged ahead. Channels at different seqnos are first brought to that of
    the furthest, as one group, however large.
    """
    low, high = low_watermark(positions), max(position.seqno for position in positions)
    committed = sum(size for seqno, size in state.groups_ahead if seqno <= low)
    state = replace(state, groups_ahead=tuple(group for group in state.groups_ahead if group[0] > low))
    inserts: list[Insert] = []
    left = list(epochs)
    while left and len(state.groups_ahead) < MAX_GROUPS_AHEAD and not (state.groups_ahead and state.is_preparing):
        if left[0].kind is EpochKind.SERIAL:
            epoch = left.pop(0)
            inserts += _serial_tasks(names, epoch, state.channels)
            state = state.fed(epoch=epoch.number, seqno=epoch.last_seqno)
            continue
        is_prepared = state.prepares
        if is_prepared and state.groups_ahead:
            break
        is_uneven = not all_equal(positions) and left[0].first_seqno <= high
        size = 2 * committed if is_prepared else min(state.bytes_ahead, _bytes_of(left) // 2)
        limit = min(max(_FIRST_GROUP_BYTES, size), limits.bytes_)
        group = Group(tuple(_front(left, limit, high if is_uneven else None)), is_uneven)
        del left[: len(group.epochs)]
        stages = group.stages(
            state.channels, rows_at_once=limits.rows_at_once, turn=state.group_count, prepares=is_prepared
        )
        inserts += _group_tasks(names, group, stages)
        work = group.work
        state = replace(
            state.fed(epoch=work.epoch, seqno=work.last_seqno),
            groups_ahead=(*state.groups_ahead, (work.last_seqno, group.bytes_)),
            group_count=state.group_count + 1,
            is_preparing=is_prepared,
        )
    return state, inserts


def stop_task(names: Names, epoch: int, seqno: int) -> Insert:
    """The stop, behind everything of the queue `serial`: it awaits nobody else."""
    work = SerialWork(epoch=epoch, first_seqno=seqno, last_seqno=seqno, rows=0, reason="")
    return Insert(
        queue=names.serial,
        value=OrderedWork(kind=Kind.STOP, work=work).to_json(),
        sequence=STOP_SEQUENCE,
        task_id=names.task_id("stop"),
        skip_colliding=True,
    )


def _bytes_of(epochs: Sequence[Epoch]) -> int:
    return sum(sum(epoch.bytes_) for epoch in epochs)


def _front(epochs: Sequence[Epoch], limit_bytes: int, through_seqno: int | None) -> Iterator[Epoch]:
    """The parallel epochs in front, at least one: up to the limit, or those that begin at or below a seqno."""
    size = 0
    for index, epoch in enumerate(epochs):
        size += sum(epoch.bytes_)
        ends = size > limit_bytes if through_seqno is None else epoch.first_seqno > through_seqno
        if epoch.kind is EpochKind.SERIAL or (index and ends):
            return
        yield epoch


def _group_tasks(names: Names, group: Group, stages: Sequence[ChannelWork]) -> list[Insert]:
    commit = OrderedWork(kind=Kind.COMMIT, work=group.work, awaited=tuple(stage.channel for stage in stages))
    return [*(_channel_task(names, stage) for stage in stages), _ordered_task(names, commit)]


def _serial_tasks(names: Names, epoch: Epoch, channels: int) -> list[Insert]:
    markers = [ChannelWork.of_epoch(epoch, channel, Kind.BARRIER) for channel in range(channels)]
    serial = OrderedWork(kind=Kind.SERIAL, work=Group((epoch,)).work, awaited=tuple(range(channels)))
    return [*(_channel_task(names, marker) for marker in markers), _ordered_task(names, serial)]


def _channel_task(names: Names, work: ChannelWork) -> Insert:
    return Insert(
        queue=names.channel(work.channel),
        value=work.to_json(),
        sequence=work.epoch,
        task_id=names.task_id("channel", work.channel, work.epoch),
        # Held by a lane that has yet to notice what the target has lost.
        skip_colliding=True,
    )


def _ordered_task(names: Names, ordered: OrderedWork) -> Insert:
    return Insert(
        queue=names.serial,
        value=ordered.to_json(),
        sequence=ordered.work.epoch,
        at=None if ordered.is_complete else PARKED,
        task_id=names.serial_id(ordered.work.epoch),
        skip_colliding=True,
    )
