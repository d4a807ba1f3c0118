"""The statistics of an output."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_parallel_apply.router.engine.states import Demand


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputStats:
    """Statistics of an output: what it was given and what that took, so far.

    `dropped_rows`: of those, what nobody wanted any more. `blocked_seconds`: time in which it could take nothing, and
    rows for it were spilled or the engine stood still. `waiting_*`: rows that nobody has read yet; `high_*`: the most
    that there was at a time.
    """

    number: int
    demand: Demand
    rows: int
    byte_count: int
    dropped_rows: int
    blocked_seconds: float
    waiting_memory_bytes: int
    waiting_disk_bytes: int
    high_memory_bytes: int
    high_disk_bytes: int
