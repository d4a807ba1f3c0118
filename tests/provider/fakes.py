"""The pipeline level, replaced: what each step was asked, and what it answers or raises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.admin import watch
from airflow_parallel_apply.pipeline.admin.watch import LeaseView, Look
from airflow_parallel_apply.pipeline.apply.report import LaneReport
from airflow_parallel_apply.pipeline.capture.values import Prepared
from airflow_parallel_apply.pipeline.ledger.protocol import RunBounds
from airflow_parallel_apply.pipeline.run import CaptureReport, ClosedRun, OpenedRun
from airflow_parallel_apply.router import plan as router
from airflow_parallel_apply.router.plan import PlanReport


class KeptForTask(dict[str, Any]):
    """The values that Airflow keeps for a task of one run, through its retries and clears, and removes with the run."""

    def set(self, key: str, value: Any, **_: Any) -> None:
        self[key] = value


STATE = {"phase": "running", "channels": 4}


@dataclass
class FakeStage:
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class FakePipeline:
    """`fail[step]` is raised by the step, once a call as long as errors are left."""

    changes: str | None = "changes were committed at the source"
    later_changes: str | None = None
    """The changes that are found from the second look on, where the first finds nothing."""
    lanes: int = 2
    nothing_to_do: bool = False
    fail: dict[str, list[Exception]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    asked: dict[str, dict[str, Any]] = field(default_factory=dict)
    during_apply: Callable[[Any], None] = lambda signals: None
    during_copy: Callable[[Any], None] = lambda copying: None
    owner: str | None = None
    lapsed_owner: str | None = None
    generation: int = 7
    applied_seqno: int = -1
    session_id: str = ""
    looks_before_past: int = 0
    """How often the source is not past an interval yet."""
    stage: FakeStage = field(default_factory=FakeStage)

    def _step(self, name: str, **asked: Any) -> None:
        self.calls.append(name)
        self.asked[name] = asked
        if self.fail.get(name):
            raise self.fail[name].pop(0)

    def look_for_changes(self, config, source, target, *, interval=None):
        self._step("changes_available", config=config, source=source, target=target, interval=interval)
        found, self.changes = self.changes, self.changes or self.later_changes
        return Look(reason=found) if found else Look(generation=self.generation, captured_offset=17)

    def changes_since(self, config, source, target, before):
        self._step("changes_since", config=config, source=source, target=target, before=before)
        return self.changes

    def source_is_past(self, config, source, time):
        self._step("source_is_past", time=time)
        if self.looks_before_past:
            self.looks_before_past -= 1
            return False
        return True

    def lease_view(self, pipeline, target):
        self._step("lease_view")
        return LeaseView(
            owner=self.owner,
            lapsed_owner=self.lapsed_owner,
            generation=self.generation,
            applied_seqno=self.applied_seqno,
        )

    def capture(self, config, source, target, *, queue, run_id, until, interval, cancelled, report, copying):
        self._step(
            "capture",
            config=config,
            source=source,
            target=target,
            queue=queue,
            run_id=run_id,
            until=until,
            interval=interval,
        )
        self.during_copy(copying)
        return CaptureReport(
            prepared=Prepared(log_id="log", stream="slot", selection="publication", tables=(), created=("slot",)),
            bounds=RunBounds(run_id=run_id, until_offset=1, until_seqno=9),
            until="0/1",
            captured="0/1",
            last_seqno=9,
            rows=100,
            done=True,
            seconds=0.1,
        )

    def plan(self, config, target):
        self._step("route", config=config)
        return PlanReport(planned_seqno=9, epochs=1, critical=0, rows=100, left_to_open=False)

    def open_run(self, config, source, target, *, queue, owner, run_id, until, interval, catch_up, session_id, goes_on):
        self._step(
            "open",
            config=config,
            queue=queue,
            owner=owner,
            run_id=run_id,
            until=until,
            interval=interval,
            catch_up=catch_up,
        )
        self.session_id = session_id
        return OpenedRun(
            pipeline=config.pipeline,
            run_id=run_id,
            generation=7,
            log_id="log",
            until_offset="0/1",
            until_seqno=9,
            nothing_to_do=self.nothing_to_do,
            lanes=0 if self.nothing_to_do else self.lanes,
            coordinator_state=STATE,
        )

    def apply(self, opened, config, source, target, *, queue, lane, stage, signals):
        self._step("apply", opened=opened, queue=queue, lane=lane, stage=stage)
        self.during_apply(signals)
        return LaneReport(lane=lane, generation=opened.generation, channels={lane}, units=1, rows=50, stop_seqno=9)

    def close_run(self, opened, config, target, lane_reports, *, queue):
        self._step("close", opened=opened, queue=queue, lane_reports=lane_reports)
        return ClosedRun(
            pipeline=config.pipeline, generation=7, stop_seqno=9, channels=4, rows=100, stopped_early=False
        )

    @contextmanager
    def spark_stage(self, spark, config, target, *, session_id) -> Iterator[tuple[FakeStage, str | None]]:
        self.asked["spark"] = {"spark": spark, "session_id": session_id(None)}
        yield self.stage, "http://127.0.0.1:4040"


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> FakePipeline:
    fake = FakePipeline()
    monkeypatch.setattr(watch, "look_for_changes", fake.look_for_changes)
    monkeypatch.setattr(watch, "changes_since", fake.changes_since)
    monkeypatch.setattr(watch, "source_is_past", fake.source_is_past)
    monkeypatch.setattr(watch, "lease_view", fake.lease_view)
    monkeypatch.setattr(run, "shared_session", lambda *_, **__: fake.session_id)
    for name in ("capture", "open_run", "apply", "close_run"):
        monkeypatch.setattr(run, name, getattr(fake, name))
    monkeypatch.setattr(router, "plan", fake.plan)
    monkeypatch.setattr("airflow_parallel_apply.operators.spark.spark_stage", fake.spark_stage)
    monkeypatch.setattr("airflow_parallel_apply.operators.coordinator.release", lambda spark, session_id: None)
    monkeypatch.setattr("airflow_parallel_apply.operators.capture.begin", lambda spark: None)
    return fake
