"""The staging half of apply, as a protocol: scan the log, reduce to net changes, load staging tables.

Spark implements it (`airflow_parallel_apply.spark`); the lane that calls it owns the merge, the position and the
commit. Staging holds no locks on target tables and may run twice: attempts that were not acknowledged are nobody's.
`tests/contract/test_stage.py` is what every implementation is held to.
"""

from __future__ import annotations

from typing import Protocol

from airflow_parallel_apply.pipeline.model.epoch import StagedUnit, Unit


class Stage(Protocol):
    """Thread-safe: a lane stages the next unit while it merges the one before."""

    def stage(self, unit: Unit) -> StagedUnit:
        """Load the unit's net changes. Errors: `TargetError` (a value or table that the target refuses),
        `LogError`, `Unavailable` (Spark or the target went away), `OwnershipLost` (sessions were ended).
        """
        ...

    def cancel(self) -> None:
        """Interrupt what is being staged by this instance; `stage` then raises. Callable from any thread."""
        ...

    def close(self) -> None: ...
