"""The memory backend's clock while somebody sets the system's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow_parallel_apply.queue import Insert
from airflow_parallel_apply.queue.memory import DataDirectory, MemoryQueue
from airflow_parallel_apply.queue.memory.engine import Engine
from airflow_parallel_apply.queue.memory.steady_clock import SteadyClock

HOUR = timedelta(hours=1)
LEASE = timedelta(seconds=30)


class System:
    """A machine's two clocks, of which somebody sets one."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.seconds = 0.0

    def pass_(self, time: timedelta) -> None:
        self.now += time
        self.seconds += time.total_seconds()

    def clock(self, *, not_before: datetime | None = None) -> SteadyClock:
        return SteadyClock(not_before=not_before, system=lambda: self.now, monotonic=lambda: self.seconds)


def test_it_goes_on_where_the_systems_clock_is_set_back_and_follows_where_it_is_set_forward() -> None:
    system = System()
    clock, start = system.clock(), system.now
    system.pass_(LEASE)
    system.now -= HOUR
    assert clock() == start + LEASE
    system.pass_(LEASE)
    assert clock() == start + 2 * LEASE
    system.now += 3 * HOUR
    assert clock() == system.now
    assert system.clock(not_before=start)() == system.now
    assert system.clock(not_before=system.now + HOUR)() == system.now + HOUR


def test_a_clock_that_is_set_back_holds_up_neither_tasks_nor_leases() -> None:
    system = System()
    queue = MemoryQueue(Engine(clock=system.clock()))
    queue.modify(claimant="ann", insert=[Insert(queue="strict", value=1, sequence=1), Insert(queue="spread", value=2)])
    assert queue.try_claim(["strict"], claimant="ann", lease=LEASE) is not None
    system.pass_(LEASE)
    system.now -= HOUR
    assert queue.try_claim(["spread"], claimant="bob", lease=LEASE) is not None
    assert queue.try_claim(["strict"], claimant="bob", lease=LEASE) is not None


def test_tasks_of_a_clock_that_was_set_back_before_the_next_start_can_be_claimed(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "queue", clock=lambda: datetime.now(UTC) + HOUR)
    MemoryQueue(data.engine).modify(claimant="ann", insert=[Insert(queue="spread", value=1)])
    data.close()
    data = DataDirectory(tmp_path / "queue")
    assert MemoryQueue(data.engine).try_claim(["spread"], claimant="bob", lease=LEASE) is not None
    data.close()
