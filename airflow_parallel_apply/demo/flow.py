"""The demonstration from start to end: servers, a history, one run of the DAG, a comparison."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pendulum

from airflow_parallel_apply.demo.airflow import AirflowOptions, AirflowServices
from airflow_parallel_apply.demo.airflow_api import AirflowClient, TaskInstance
from airflow_parallel_apply.demo.display import Display
from airflow_parallel_apply.demo.history import CHANGES_PER_TRANSACTION, create_tables, load_tables, run_transactions
from airflow_parallel_apply.demo.interrupts import ignore_signals
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.demo.processes import Tree
from airflow_parallel_apply.demo.report import Outcome
from airflow_parallel_apply.demo.settings import (
    DATABASE,
    LEDGER_CONNECTION,
    PIPELINE,
    SOURCE_CONNECTION,
    TABLES,
    TARGET_CONNECTION,
    DemoSettings,
)
from airflow_parallel_apply.demo.targets import DemoTarget, make_target
from airflow_parallel_apply.pipeline.admin.status import PipelineStatus, read_status
from airflow_parallel_apply.pipeline.compare import compare
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.embedded.layout import RUNTIME_DIR_VARIABLE
from airflow_parallel_apply.pipeline.errors import ConfigurationError, ParallelApplyError
from airflow_parallel_apply.pipeline.run import prepare
from airflow_parallel_apply.spark.layout import IDLE_VARIABLE, ServerSettings
from airflow_parallel_apply.spark.server import connect_server, stop_server

DAG_ID: Final = "parallel_apply"
_SPARK_IDLE: Final = timedelta(seconds=30)
"""How long a Spark server outlives a demo that was killed."""

_RUN_TIMEOUT: Final = timedelta(hours=2)
_SHOW_EVERY: Final = timedelta(seconds=1)
_LOG_LINES: Final = 5
_LINE_CHARACTERS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Everything that runs while the demo runs. `beside`: the target, or the place of its ledger."""

    source: PostgresServer
    beside: PostgresServer
    target: DemoTarget
    airflow: AirflowServices

    @property
    def source_endpoint(self) -> Endpoint:
        return Endpoint(conn_id=SOURCE_CONNECTION, url=self.source.dsn(DATABASE))

    @property
    def target_endpoint(self) -> Endpoint:
        ledger = Endpoint(conn_id=LEDGER_CONNECTION, url=self.beside.dsn(DATABASE))
        return Endpoint(
            conn_id=TARGET_CONNECTION, url=self.target.url, ledger=None if self.target.is_ledger else ledger
        )


@contextmanager
def stage(settings: DemoSettings) -> Iterator[Stage]:
    """Servers, made but not started; at the end all that was started is ended, whatever happened in between."""
    sweep(settings)
    shutil.rmtree(settings.run, ignore_errors=True)
    settings.run.mkdir(parents=True)
    source = PostgresServer(settings.run / "source" / "data")
    beside = PostgresServer(
        settings.run / "target" / "data", settings={"max_prepared_transactions": str(settings.channels + 2)}
    )
    target = make_target(settings, beside, DATABASE)
    airflow = AirflowServices(
        AirflowOptions(
            home=settings.run / "airflow",
            dags=settings.dags,
            cache=settings.cache,
            connections={
                SOURCE_CONNECTION: source.uri(DATABASE),
                TARGET_CONNECTION: target.connection,
                LEDGER_CONNECTION: beside.uri(DATABASE),
            },
            environment={
                RUNTIME_DIR_VARIABLE: str(settings.spark),
                IDLE_VARIABLE: str(_SPARK_IDLE.total_seconds()),
            },
        )
    )
    _token_file(settings).write_text(airflow.tree.token)
    with ExitStack() as ends:
        ends.callback(source.stop)
        ends.callback(beside.stop)
        ends.callback(target.stop)
        ends.callback(_stop_spark, settings)
        ends.callback(airflow.stop, patience=timedelta(0))  # nothing of it is kept, so nothing has to be finished
        ends.callback(ignore_signals)
        yield Stage(source=source, beside=beside, target=target, airflow=airflow)


def sweep(settings: DemoSettings) -> None:
    """End what a demo that was killed has left. Its PostgreSQL servers went with it."""
    with suppress(FileNotFoundError):
        Tree(_token_file(settings).read_text().strip()).end()
        _stop_spark(settings)


def play(settings: DemoSettings, on: Stage, display: Display) -> Outcome:
    """Everything, up to the comparison. Errors: any of the pipeline's."""
    with ThreadPoolExecutor(max_workers=1) as executor:
        try:
            starting = executor.submit(on.airflow.start)
            _make_history(settings, on, display)
            _wait_for_airflow(starting, on.airflow, display)
        except BaseException:
            on.airflow.stop(patience=timedelta(0))  # so that the thread, which waits for it, ends
            raise
    client = on.airflow.client
    run_id = client.trigger(DAG_ID, _conf(settings, on))
    display.say(f"triggered the DAG {DAG_ID}: {settings.channels} channels, run {run_id}")
    with _spark_started(settings, display), display.channels() as view:
        state = client.wait_for_run(
            DAG_ID,
            run_id,
            timeout=_RUN_TIMEOUT,
            every=_SHOW_EVERY,
            on_poll=lambda: view.show(_status(settings, on), _doing(client, run_id)),
        )
    tasks = client.task_instances(DAG_ID, run_id)
    display.say(f"the run ended: {state}")
    _explain_failures(client, run_id, tasks, display)
    return _outcome(settings, on, run_id, state, tasks, display)


def _make_history(settings: DemoSettings, on: Stage, display: Display) -> None:
    for server in (on.source, on.beside):
        server.start()
        server.create_database(DATABASE)
    for server in (on.source, *((on.beside,) if on.target.is_ledger else ())):
        create_tables(server, DATABASE)
    display.say(f"two PostgreSQL 18 servers run: source on port {on.source.port}, another on port {on.beside.port}")
    display.say(on.target.start())
    prepared = prepare(_config(settings), on.source_endpoint, on.target_endpoint)
    for line in prepared.created:
        display.say(line)
    load_tables(on.source, DATABASE, scale=settings.scale)
    display.say(f"pgbench wrote its initial load at the source, scale {settings.scale}")
    changes = settings.transactions * CHANGES_PER_TRANSACTION
    with display.bar("pgbench transactions at the source", settings.transactions) as update:
        began = pendulum.now("UTC")
        run_transactions(on.source, DATABASE, settings.transactions, on_progress=update)
    seconds = (pendulum.now("UTC") - began).total_seconds()
    display.say(f"pgbench wrote {settings.transactions:,} transactions, {changes:,} row changes, in {seconds:.0f} s")


def _wait_for_airflow(starting: Future[AirflowServices], airflow: AirflowServices, display: Display) -> None:
    if not starting.done():
        display.say("waiting for Airflow")
    starting.result()
    airflow.wait_for_dag(DAG_ID)
    display.say(f"Airflow runs at {airflow.base_url}")


@contextmanager
def _spark_started(settings: DemoSettings, display: Display) -> Iterator[None]:
    """Start the embedded Spark server beside the run's first tasks, which need little: its start is seconds long.

    What cannot start is left to the lanes, whose error says more.
    """
    finished = threading.Event()
    spark = replace(ServerSettings.from_environment(), idle=_SPARK_IDLE)

    def hold() -> None:
        with suppress(ParallelApplyError), connect_server(settings=spark, directory=settings.spark) as lease:
            display.say(f"Spark Connect runs, its pages are at {lease.ui_url}")
            finished.wait()

    with ThreadPoolExecutor(max_workers=1) as executor:
        executor.submit(hold)
        try:
            yield
        finally:
            finished.set()


def _outcome(
    settings: DemoSettings, on: Stage, run_id: str, state: str, tasks: tuple[TaskInstance, ...], display: Display
) -> Outcome:
    client = on.airflow.client

    def returned(task_id: str, map_index: int = -1) -> dict[str, Any]:
        value = client.xcom(DAG_ID, run_id, task_id, "return_value", map_index=map_index)
        return value if isinstance(value, dict) else {}

    lanes = [returned("apply", task.map_index) for task in tasks if task.task_id == "apply" and task.map_index >= 0]
    display.say("comparing the tables of both sides")
    compared = compare(on.source_endpoint, on.target_endpoint, TablePatterns(include=(TABLES,)))
    return Outcome(
        state=state,
        tasks=tasks,
        lanes=tuple(lane for lane in lanes if lane),
        captured=returned("capture"),
        closed=returned("close"),
        status=_status(settings, on),
        tables=tuple(compared.tables),
    )


def _conf(settings: DemoSettings, on: Stage) -> dict[str, Any]:
    return {
        "pipeline": PIPELINE,
        "source_conn_id": SOURCE_CONNECTION,
        "target_conn_id": TARGET_CONNECTION,
        "ledger_conn_id": "" if on.target.is_ledger else LEDGER_CONNECTION,
        "spark_conn_id": "",
        "log_url": settings.log_url,
        "tables": {"include": [TABLES], "exclude": []},
        "start": "empty",
        "channels": settings.channels,
        "consistency": settings.consistency,
        "epoch_protocol": settings.epoch_protocol,
    }


def _config(settings: DemoSettings) -> PipelineConfig:
    return PipelineConfig(
        pipeline=PIPELINE,
        start=Start.EMPTY,
        log_url=settings.log_url,
        tables=TablePatterns(include=(TABLES,)),
        channels=settings.channels,
        consistency=settings.consistency,
        epoch_protocol=settings.epoch_protocol,
    )


def _status(settings: DemoSettings, on: Stage) -> PipelineStatus | None:
    try:
        return read_status(on.target_endpoint, PIPELINE, settings.log_url)
    except ConfigurationError:  # the run has not opened it yet
        return None


def _doing(client: AirflowClient, run_id: str) -> str:
    try:
        tasks = client.task_instances(DAG_ID, run_id)
    except ParallelApplyError as error:
        return error.message
    doing: dict[str, int] = {}
    for task in tasks:
        if task.state in {"running", "deferred", "queued", "up_for_retry"}:
            label = f"{task.task_id} {task.state}"
            doing[label] = doing.get(label, 0) + 1
    return ", ".join(f"{label} ×{count}" if count > 1 else label for label, count in doing.items()) or "between tasks"


def _explain_failures(client: AirflowClient, run_id: str, tasks: tuple[TaskInstance, ...], display: Display) -> None:
    """Show what each failed task said of itself, or else the end of its log."""
    failed = [task for task in tasks if task.state == "failed"]
    if not failed:
        return
    from airflow_parallel_apply.task import ERROR_KEY  # brings Airflow, which takes seconds

    for task in failed:
        message = client.xcom(DAG_ID, run_id, task.task_id, ERROR_KEY, map_index=task.map_index)
        lines = [str(message)] if message else client.task_log(DAG_ID, run_id, task).splitlines()[-_LOG_LINES:]
        display.say(f"[red]{task.task_id} ({task.name}) failed:[/red]")
        for line in lines:
            display.console.print(f"          {line[:_LINE_CHARACTERS]}", markup=False, highlight=False, soft_wrap=True)


def _token_file(settings: DemoSettings) -> Path:
    return settings.run / "tree"


def _stop_spark(settings: DemoSettings) -> None:
    with suppress(ParallelApplyError):
        stop_server(directory=settings.spark)
