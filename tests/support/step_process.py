"""One step of a run, as the process does it that tests kill. SIGTERM cancels."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, Literal

import airflow_parallel_apply
from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.apply import capture_turn
from airflow_parallel_apply.pipeline.apply.signals import LaneSignals
from airflow_parallel_apply.pipeline.apply.stage import Stage
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, QueueEndpoint
from airflow_parallel_apply.pipeline.copy.postgres import parts
from airflow_parallel_apply.pipeline.copy.protocol import Copier, Copying
from airflow_parallel_apply.pipeline.run import preparing
from airflow_parallel_apply.spark.copier import spark_copier
from airflow_parallel_apply.spark.server import connect_server
from airflow_parallel_apply.spark.session import ConnectAccess
from airflow_parallel_apply.spark.stage import open_stage
from tests.support.local_copier import LocalCopier
from tests.support.local_stage import LocalStage

# What a lane imports when it needs it: once for all that are forked.
importlib.import_module("pyspark.sql.connect.session")

_PACKAGE: Final = str(Path(airflow_parallel_apply.__file__).parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The process sends itself a signal around a call: `at` is `module:name` or `module:Class.method`. Or, where `line`
    is given, before it executes that many different lines of the package's functions, whichever they are.
    """

    at: str = ""
    when: Literal["before", "after"] = "before"
    call: int = 1
    """Counted from 1."""
    line: int | None = None
    """Counted from 1."""
    signal: int = signal.SIGKILL


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One step to be done. `session_id` None: stage without Spark."""

    step: Literal["lane", "capture", "open"]
    config: PipelineConfig
    source_dsn: str
    target_dsn: str
    queue_dsn: str | None = None
    ledger_dsn: str | None = None
    run_id: str = ""
    opened: run.OpenedRun | None = None
    lane: int = 0
    session_id: str | None = None
    step_changes: int = capture_turn.STEP_CHANGES
    part_bytes: int = parts.PART_BYTES
    fault: Fault | None = None


def peak_bytes(pid: int) -> int:
    """The most that a process held in memory; 0 where it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def run_step(order: Order, environment: Mapping[str, str], log: Path, reports: Connection) -> None:
    """Do the step in this process, then send its report as JSON."""
    os.environ.clear()
    os.environ.update(environment)
    messages = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(messages, sys.stdout.fileno())
    os.dup2(messages, sys.stderr.fileno())
    logging.basicConfig(
        force=True, level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(threadName)s %(levelname)s %(message)s"
    )
    if order.fault is not None:
        _arm(order.fault) if order.fault.line is None else _arm_line(order.fault)
    cancelled: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: cancelled.append(number))
    with ExitStack() as stack:
        reports.send({**_run(order, stack, cancelled), "peak_bytes": peak_bytes(os.getpid())})


def _run(order: Order, stack: ExitStack, cancelled: list[int]) -> dict[str, Any]:
    config = order.config
    source = Endpoint(conn_id="source", url=order.source_dsn)
    ledger = None if order.ledger_dsn is None else Endpoint(conn_id="ledger", url=order.ledger_dsn)
    target = Endpoint(conn_id="target", url=order.target_dsn, ledger=ledger)
    queue = None if order.queue_dsn is None else QueueEndpoint(conn_id="queue", dsn=order.queue_dsn)
    capture_turn.STEP_CHANGES = order.step_changes  # type: ignore[misc]
    preparing.FIRST_CAPTURE_CHANGES = order.step_changes  # type: ignore[misc]
    parts.PART_BYTES = order.part_bytes  # type: ignore[misc]
    if order.step == "capture":
        return run.capture(
            config,
            source,
            target,
            queue=queue,
            run_id=order.run_id,
            until="",
            cancelled=lambda: bool(cancelled),
            report=lambda step: None,
            copying=Copying(
                copier=_copier(order, source, target, stack),
                report=lambda progress: None,
                cancelled=lambda: bool(cancelled),
            ),
        ).to_json()
    if order.step == "open":
        opened = run.open_run(config, source, target, queue=queue, owner=order.run_id, run_id=order.run_id)
        return opened.to_json()
    if order.opened is None:
        raise ValueError("a lane needs an opened run")
    return run.apply(
        order.opened,
        config,
        source,
        target,
        queue=queue,
        lane=order.lane,
        stage=_stage(order, config, target, stack),
        signals=LaneSignals(
            stop_requested=lambda: False, cancelled=lambda: bool(cancelled), report=lambda report: None
        ),
    ).to_json()


def _stage(order: Order, config: PipelineConfig, target: Endpoint, stack: ExitStack) -> Stage:
    if order.session_id is None:
        return LocalStage(config.log_url, target, config=config)
    url = lambda: stack.enter_context(connect_server()).url  # noqa: E731
    stage = open_stage(access=ConnectAccess(url=url, session_id=order.session_id), config=config, target=target)
    stack.callback(stage.close)
    return stage


def _copier(order: Order, source: Endpoint, target: Endpoint, stack: ExitStack) -> Copier:
    if order.session_id is None:
        return LocalCopier(source=source, target=target)
    return stack.enter_context(spark_copier(None, source, target))


def _arm(fault: Fault) -> None:
    module, _, path = fault.at.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    original = getattr(owner, name)
    calls = 0

    @functools.wraps(original)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        strike = calls == fault.call
        if strike and fault.when == "before":
            os.kill(os.getpid(), fault.signal)
        result = original(*arguments, **named)
        if strike and fault.when == "after":
            os.kill(os.getpid(), fault.signal)
        return result

    setattr(owner, name, wrapped)


def _arm_line(fault: Fault) -> None:
    executed: set[tuple[CodeType, int]] = set()

    def in_function(frame: FrameType, event: str, _: object) -> Any:
        line = frame.f_code, frame.f_lineno
        if event == "line" and line not in executed:
            executed.add(line)
            if len(executed) == fault.line:
                os.kill(os.getpid(), fault.signal)
        return in_function

    def on_call(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        return in_function if code.co_filename.startswith(_PACKAGE) and code.co_name != "<module>" else None

    sys.settrace(on_call)
    threading.settrace(on_call)
