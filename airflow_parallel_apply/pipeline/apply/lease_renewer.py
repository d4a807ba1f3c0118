"""Renewing what a lane holds, in the background: its claims in the queue and its generation's lease.

A renewal changes a task's version, so whoever finishes a held task does it through `exchange`, which keeps the
renewal out meanwhile. A refused renewal means that somebody else took over: the holder is told once, by `on_lost`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, Self

from airflow_parallel_apply.pipeline.apply.periodic import every
from airflow_parallel_apply.pipeline.errors import OwnershipLost, ParallelApplyError
from airflow_parallel_apply.queue.model import DependencyError, QueueError, Task
from airflow_parallel_apply.queue.protocol import Queue
from airflow_parallel_apply.queue.renewals import renewed

_logger = logging.getLogger(__name__)

CLAIM: Final = "claim"
"""The role of what a lane works on; a capture turn has one of its own."""

_RENEWALS_PER_LEASE: Final = 3


class LeaseRenewer:
    """Renews any number of held tasks, and the lease, every third of a lease. Thread-safe."""

    def __init__(
        self,
        queue: Queue,
        *,
        claimant: str,
        lease: timedelta,
        renew_lease: Callable[[], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._queue = queue
        self._claimant = claimant
        self._lease = lease
        self._renew_lease = renew_lease
        self._on_lost = on_lost
        self._held: dict[str, Task] = {}
        self._lock = threading.RLock()

    @contextmanager
    def renewing(self) -> Iterator[Self]:
        """Around the work that wants it all held."""
        with every(self._lease.total_seconds() / _RENEWALS_PER_LEASE, self.renew, name="renewer"):
            yield self

    def hold(self, role: str, task: Task | None) -> None:
        """Renew this task for the role from now on (None: nothing)."""
        with self._lock:
            if task is None:
                self._held.pop(role, None)
            else:
                self._held[role] = task

    def held(self, role: str) -> Task:
        """The task that the role holds, at its newest version; `OwnershipLost` if it holds none any more."""
        with self._lock:
            task = self._held.get(role)
        if task is None:
            raise OwnershipLost("the claim was lost to another lane", op=role)
        return task

    def exchange(self, role: str, step: Callable[[Task], Task | None]) -> Task | None:
        """Run `step` on the newest version of what the role holds, and hold what it returns instead."""
        with self._lock:
            after = step(self.held(role))
            self.hold(role, after)
            return after

    def renew(self) -> None:
        """Renew the lease and all that is held, once."""
        try:
            self._renew_lease()
        except OwnershipLost:
            self._on_lost("lease")
        except ParallelApplyError as error:
            _logger.warning("the lease was not renewed, trying again: %s", error)
        self._renew_tasks()

    def _renew_tasks(self) -> None:
        with self._lock:
            for role, task in list(self._held.items()):
                try:
                    self._held[role] = renewed(self._queue, task, claimant=self._claimant, lease=self._lease)
                except DependencyError:
                    del self._held[role]
                    self._on_lost(role)
                except QueueError as error:
                    _logger.warning("the claim of %s was not renewed, trying again: %s", role, error)
