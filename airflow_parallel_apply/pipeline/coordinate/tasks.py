"""The tasks that a generation's queues hold: their names, values and order.

| queue | kind | holds |
|---|---|---|
| `<pipeline>/<generation>/channel/<c>` | strict | the channel's branches, barriers and stop marker, in epoch order |
| `…/serial` | strict | the serial epoch whose barrier every channel has reached, or the merge point |
| `…/barrier` | spread | one parked task a barrier: which channels have reached it |
| `…/capture` | strict | the rest of the source's backlog, as one task that lanes take turns with |
| `…/coordinator` | spread | the parked `CoordinatorState` |

Under epoch consistency with several channels the channels hold what is to be staged, and `serial` all that changes the
target, from feeding on: see `groups.py`.

In a queue that pipelines of several targets may share, `<pipeline>@<target>` stands for `<pipeline>`.
Parked tasks lie at `PARKED`: nobody claims them, they are changed by version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final
from uuid import UUID, uuid5

import pendulum

from airflow_parallel_apply.pipeline.model.epoch import Epoch
from airflow_parallel_apply.queue.model import Insert, Task, TaskId

PARKED: Final = pendulum.datetime(9000, 1, 1)
"""An arrival time that never comes."""

STOP_SEQUENCE: Final = 2**62
"""Behind every epoch: `stop_marker_is_last_in_every_channel`."""

_NAMESPACE: Final = UUID("5c5f2b0e-58b4-4c0e-8f1e-0d3f7f6a9a11")


class Kind(StrEnum):
    """The work that a claimed task asks of its lane."""

    BRANCH = "branch"
    BARRIER = "fence"
    """Stored so since the first release."""
    STOP = "stop"
    MERGE = "merge"
    STAGE = "stage"
    """A channel's rows of a group."""
    STAGE_ALL = "stage all"
    """All channels' rows of a group."""
    PREPARE = "prepare"
    PREPARE_ALL = "prepare all"
    """As these two, to be prepared where it can be."""
    COMMIT = "commit"
    """A group, all of whose rows are staged."""
    SERIAL = "serial"
    """A serial epoch, under epoch consistency."""

    @property
    def is_of_all(self) -> bool:
        """True of a part of a group that has all channels' rows."""
        return self in (Kind.STAGE_ALL, Kind.PREPARE_ALL)

    @property
    def prepares(self) -> bool:
        """True of a part of a group that is to be prepared."""
        return self in (Kind.PREPARE, Kind.PREPARE_ALL)


GROUP_PARTS: Final = (Kind.STAGE, Kind.STAGE_ALL, Kind.PREPARE, Kind.PREPARE_ALL)
"""The kinds of tasks that a channel does for a group."""


def prefix_of(pipeline: str, scope: str) -> str:
    """The prefix of the queues of all generations of a pipeline into one target."""
    return f"{pipeline}@{scope}/" if scope else f"{pipeline}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The queue names of one generation, and the ids of the tasks that exist once in it. `scope`: of the target, where
    pipelines of several targets share a queue.
    """

    pipeline: str
    generation: int
    scope: str = ""

    @property
    def prefix(self) -> str:
        """The prefix of every queue of this generation."""
        return f"{prefix_of(self.pipeline, self.scope)}{self.generation}/"

    @property
    def coordinator(self) -> str:
        return f"{self.prefix}coordinator"

    @property
    def serial(self) -> str:
        return f"{self.prefix}serial"

    @property
    def barrier(self) -> str:
        return f"{self.prefix}barrier"

    @property
    def capture(self) -> str:
        return f"{self.prefix}capture"

    def channel(self, channel: int) -> str:
        return f"{self.prefix}channel/{channel:02d}"

    def task_id(self, *parts: object) -> TaskId:
        """The same parts, the same id: feeding twice collides instead of doubling."""
        return TaskId(uuid5(_NAMESPACE, "/".join((self.prefix, *map(str, parts)))))

    @property
    def coordinator_id(self) -> TaskId:
        return self.task_id("coordinator")

    def barrier_id(self, epoch: int) -> TaskId:
        return self.task_id("barrier", epoch)

    def serial_id(self, epoch: int) -> TaskId:
        return self.task_id("serial", epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelWork:
    """The value of a channel's task: an epoch's branch or barrier, what is to be staged of a group (whose number is
    that of its last epoch), or the stop marker (whose `last_seqno` is the stop).

    `rows` and `bytes_` are the branch's in this channel, `inserts` those of its rows that are known to be insertions.
    """

    kind: Kind
    channel: int
    epoch: int
    first_seqno: int
    last_seqno: int
    rows: int
    bytes_: int
    inserts: int = 0

    @classmethod
    def of_epoch(cls, epoch: Epoch, channel: int, kind: Kind) -> ChannelWork:
        """An epoch as one channel sees it."""
        return cls(
            kind=kind,
            channel=channel,
            epoch=epoch.number,
            first_seqno=epoch.first_seqno,
            last_seqno=epoch.last_seqno,
            rows=epoch.rows[channel],
            bytes_=epoch.bytes_[channel],
            inserts=0 if epoch.inserts is None else epoch.inserts[channel],
        )

    @classmethod
    def of_task(cls, task: Task) -> ChannelWork:
        """Inverse of `to_json`."""
        return cls(**{**task.value, "kind": Kind(task.value["kind"])})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SerialWork:
    """The value of a serial task: an epoch that runs alone, every channel drained up to it."""

    epoch: int
    first_seqno: int
    last_seqno: int
    rows: int
    reason: str

    @classmethod
    def of_task(cls, task: Task) -> SerialWork:
        """Inverse of `to_json`; of an `OrderedWork`, what it is about."""
        return cls(**task.value.get("work", task.value))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedWork:
    """The value of a task of the queue `serial` under epoch consistency: the commit of a group, a serial epoch, or the
    stop (whose `last_seqno` is the stop). `awaited`: the channels whose tasks it waits for; `arrived`: by channel, what
    that task was finished with, which nobody but the target understands.
    """

    kind: Kind
    work: SerialWork
    awaited: tuple[int, ...] = ()
    arrived: Mapping[int, Any] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """True if nothing is awaited any more."""
        return set(self.awaited) <= set(self.arrived)

    def arrive(self, channel: int, result: Any) -> OrderedWork:
        """After a channel's task was finished."""
        return replace(self, arrived={**self.arrived, channel: result})

    @classmethod
    def of_task(cls, task: Task) -> OrderedWork:
        """Inverse of `to_json`."""
        value = task.value
        return cls(
            kind=Kind(value["kind"]),
            work=SerialWork(**value["work"]),
            awaited=tuple(value["awaited"]),
            arrived={int(channel): result for channel, result in value["arrived"].items()},
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "work": self.work.to_json(),
            "awaited": list(self.awaited),
            "arrived": {str(channel): result for channel, result in self.arrived.items()},
        }


def merge_task(names: Names, number: int) -> Insert:
    """The task of a merge point, for the queue `serial`, in which nothing else is while channels merge."""
    return Insert(
        queue=names.serial,
        value={"kind": Kind.MERGE, "number": number},
        sequence=number,
        task_id=names.task_id(Kind.MERGE, number),
    )


def is_merge(task: Task) -> bool:
    """True if a task of the queue `serial` is a merge."""
    return bool(task.value.get("kind") == Kind.MERGE)


def is_ordered(task: Task) -> bool:
    """True if a task of the queue `serial` is an `OrderedWork`."""
    return "awaited" in task.value
