"""The engine's journal: a log on disk (`log`), or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from airflow_parallel_apply.queue.model import Task, TaskId


class Journal(Protocol):
    """Makes changes durable, in the order in which they are applied."""

    def append(self, puts: Sequence[Task], deletes: Sequence[TaskId]) -> int:
        """Write one change down, whole or (with an error) not at all; durable once `wait` of the position returns."""
        ...

    @property
    def position(self) -> int:
        """The position of the last change that was written down."""
        ...

    def wait(self, position: int) -> None:
        """Wait until that position is durable. Errors: `QueueUnavailable`; nobody knows then whether it will be."""
        ...


class Forgetful:
    """The journal of a queue that lives as long as its process."""

    position = 0

    def append(self, puts: Sequence[Task], deletes: Sequence[TaskId]) -> int:
        del puts, deletes
        return 0

    def wait(self, position: int) -> None:
        del position
