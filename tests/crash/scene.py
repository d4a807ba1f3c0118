"""A pipeline that is killed: its steps run in processes of their own, and it runs again until it is green."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.model.position import Position
from airflow_parallel_apply.pipeline.target.open import open_target
from airflow_parallel_apply.spark.layout import server_layout
from tests.support.rig import Rig
from tests.support.step_process import Fault, Order
from tests.support.steps import StepProcess, Steps


@dataclass(kw_only=True)
class Scene:
    """One pipeline and what it runs on. `spark_directory` None: lanes stage without Spark."""

    rig: Rig
    target_server: PostgresServer
    steps: Steps
    spark_directory: Path | None = None
    step_changes: int = 400
    part_bytes: int = 2**19
    session_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    """One for all runs, so that each finds the session's Python workers warm."""

    def open(self, run_id: str) -> run.OpenedRun:
        return self.rig.open(run_id)

    def start_lane(self, opened: run.OpenedRun, lane: int = 0, *, fault: Fault | None = None) -> StepProcess:
        return self.steps.start(self._order("lane", run_id=opened.run_id, opened=opened, lane=lane, fault=fault))

    def start_capture(self, run_id: str, *, fault: Fault | None = None) -> StepProcess:
        return self.steps.start(self._order("capture", run_id=run_id, fault=fault))

    def start_open(self, run_id: str, *, fault: Fault | None = None) -> StepProcess:
        return self.steps.start(self._order("open", run_id=run_id, fault=fault))

    def close(self, opened: run.OpenedRun) -> run.ClosedRun:
        return self.rig.close(opened)

    def rerun(self, run_id: str, *, tries: int = 2) -> run.ClosedRun:
        """As Clear does it: open, lanes (of this process), close; the last error when it does not become green."""
        for attempt in range(tries):
            opened = self.open(run_id)
            try:
                self.rig.apply(opened)
                return self.close(opened)
            except ParallelApplyError:
                if attempt == tries - 1:
                    raise
        raise AssertionError("no tries")

    def positions(self) -> tuple[Position, ...]:
        target = open_target(self.rig.target, self.rig.config.pipeline)
        try:
            return target.positions()
        finally:
            target.close()

    def require_equal(self) -> None:
        """Both sides hold the same rows, every channel stands at one seqno, nothing is staged."""
        comparison = self.rig.comparison()
        assert comparison.equal, comparison
        assert len({position.seqno for position in self.positions()}) == 1, self.positions()

    def staged(self) -> list[str]:
        query = "SELECT relname FROM pg_class WHERE relnamespace = 'parallel_apply'::regnamespace AND relname ~ '^s_'"
        return [name for (name,) in self.rig.rows(query)]

    def prepared(self) -> list[str]:
        return [
            name for (name,) in self.rig.rows("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        ]

    def _order(
        self,
        step: Literal["lane", "capture", "open"],
        *,
        run_id: str,
        opened: run.OpenedRun | None = None,
        lane: int = 0,
        fault: Fault | None = None,
    ) -> Order:
        return Order(
            step=step,
            config=self.rig.config,
            source_dsn=self.rig.source_dsn,
            target_dsn=self.rig.target_dsn,
            queue_dsn=None if self.rig.queue is None else self.rig.queue.dsn,
            ledger_dsn=self.rig.ledger_dsn,
            run_id=run_id,
            opened=opened,
            lane=lane,
            session_id=None if self.spark_directory is None else self.session_id,
            step_changes=self.step_changes,
            part_bytes=self.part_bytes,
            fault=fault,
        )


def wait_until(condition: Callable[[], bool], *, timeout: float = 180, what: str = "") -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"still waiting for {what}"
        time.sleep(0.02)


def spark_processes(directory: Path) -> tuple[int, list[int]]:
    """The JVM, and the Python workers below it (the daemon that forks them among them)."""
    state = server_layout(directory).read_state()
    if state is None:
        return 0, []
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, ahead = [], [state.server_pid]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += below
    return state.server_pid, sorted(found)
