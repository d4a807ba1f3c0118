"""`parallel-apply`: what a person asks of a pipeline outside its runs, from the first check to its removal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final, Never

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from airflow_parallel_apply.addresses import database_at, queue_at, spark_at
from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.errors import RetryableError
from airflow_parallel_apply.pipeline.finding import Finding, Side
from airflow_parallel_apply.pipeline.options import (
    AsJson,
    LogUrl,
    Pipeline,
    RoutingOptions,
    RunOptions,
    TableOptions,
    console,
    spread,
    told,
)
from airflow_parallel_apply.queue.model import QueueUnavailable
from airflow_parallel_apply.spark.endpoint import copier_on, findings_from

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.status import PipelineStatus

app = typer.Typer(
    help="Pipelines of airflow_parallel_apply, outside their runs: from the first check to their removal.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

_DATABASE_HELP: Final = (
    "a libpq connection string or URI, or the id of an Airflow connection. Keep passwords in the variable."
)
_SPARK_HELP: Final = (
    "the id of an Airflow connection, a Spark Connect URL (sc://host:port), or a cluster's master (spark://host:port)"
)
_WATCH_SECONDS: Final = 1.0

SourceOption = Annotated[str, typer.Option(envvar="PARALLEL_APPLY_SOURCE", help=f"The source: {_DATABASE_HELP}")]
TargetOption = Annotated[str, typer.Option(envvar="PARALLEL_APPLY_TARGET", help=f"The target: {_DATABASE_HELP}")]
QueueOption = Annotated[
    str,
    typer.Option(
        "--queue",
        envvar="PARALLEL_APPLY_QUEUE",
        help="The pipeline's queue, if not in the target: grpc://host:port, grpcs://:token@host:port?ca=FILE, a libpq "
        "connection string, or the id of an Airflow connection. Keep tokens in the variable.",
        show_default="in the target",
    ),
]


@app.command()
@spread
def prepare(
    pipeline: Pipeline,
    source: SourceOption,
    target: TargetOption,
    log_url: LogUrl,
    tables: TableOptions,
    run: RunOptions,
    routing: RoutingOptions,
    spark: Annotated[
        str, typer.Option(envvar="PARALLEL_APPLY_SPARK", help=f"For the copy: {_SPARK_HELP}; empty: a local Spark.")
    ] = "",
    queue: QueueOption = "",
) -> None:
    """Check both sides, then create publication, slot, log and the target's schema, and copy the rows that are there.

    What is there already stays. The first run does the same by itself.
    """
    from airflow_parallel_apply.pipeline.copy.protocol import Copying
    from airflow_parallel_apply.pipeline.copy.view import CopyBar
    from airflow_parallel_apply.pipeline.run import prepare as prepare_run

    with told():
        config = _config(pipeline, log_url, tables, run, routing)
        ends = database_at(source, "source"), database_at(target, "target")
        with CopyBar() as bar, copier_on(spark_at(spark), config, *ends) as copier:
            copying = Copying(copier=copier, report=bar.show, cancelled=lambda: False)
            prepared = prepare_run(config, *ends, queue=queue_at(queue), copying=copying)
    for warning in dict.fromkeys(prepared.warnings):
        typer.echo(f"warning: {warning}", err=True)
    for line in prepared.created or ("everything is there already",):
        typer.echo(line)
    typer.echo(f"follows {len(prepared.tables)} tables: {', '.join(prepared.tables)}")


@app.command()
@spread
def check(
    pipeline: Pipeline,
    source: SourceOption,
    target: TargetOption,
    log_url: LogUrl,
    tables: TableOptions,
    run: RunOptions,
    routing: RoutingOptions,
    spark: Annotated[
        str, typer.Option(envvar="PARALLEL_APPLY_SPARK", help=f"Look from its executors, too: {_SPARK_HELP}.")
    ] = "",
    queue: QueueOption = "",
    as_json: AsJson = False,
) -> None:
    """Look for what would stand in a run's way, on both sides and in the log; exit 1 when there is an error.

    Changes nothing. Each finding comes with the command that mends it.
    """
    from airflow_parallel_apply.pipeline.check import check_pipeline
    from airflow_parallel_apply.pipeline.check.view import check_view

    with told():
        config = _config(pipeline, log_url, tables, run, routing)
        ends = database_at(source, "source"), database_at(target, "target")
        workers = spark_at(spark)
        with Console(stderr=True).status("looking at both sides") as spinner:

            def from_workers() -> Sequence[Finding]:
                spinner.update("looking from Spark's executors, which may take a minute")
                return findings_from(workers, config, ends[1])

            checked = check_pipeline(config, *ends, queue=queue_at(queue), elsewhere=from_workers)
    if as_json:
        typer.echo(json.dumps(checked.to_json()))
    else:
        console().print(check_view(checked), crop=False)
    sys.exit(0 if checked.is_good else 1)


@app.command()
def status(
    pipeline: Pipeline,
    target: TargetOption,
    log_url: Annotated[str | None, typer.Option("--log-url", help="The log, for lag behind what is captured.")] = None,
    source: Annotated[
        str | None, typer.Option(envvar="PARALLEL_APPLY_SOURCE", help=f"For what its slot holds back: {_DATABASE_HELP}")
    ] = None,
    queue: QueueOption = "",
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option(help="Show it anew every second until Ctrl-C.")] = False,
) -> None:
    """Per channel: committed seqno, lag, state and what it waits for; below it warnings of slot, log and disk."""
    from airflow_parallel_apply.pipeline.status import read_status
    from airflow_parallel_apply.pipeline.status_view import status_view

    with told():
        ends = database_at(target, "target"), database_at(source, "source") if source else None
        steered = queue_at(queue)

        def look() -> PipelineStatus:
            return read_status(ends[0], pipeline, log_url, ends[1], queue=steered)

        first = look()
        if watch:
            _watch(first, look, as_json=as_json)
        elif as_json:
            typer.echo(json.dumps(first.to_json()))
        else:
            console().print(status_view(first, {}))


def _watch(first: PipelineStatus, look: Callable[[], PipelineStatus], *, as_json: bool) -> Never:
    """Every second, until Ctrl-C. A server that is away for a while is said so, and asked again."""
    from airflow_parallel_apply.pipeline.status_view import Rates, status_view

    rates, shown = Rates(), first
    with Live(auto_refresh=False, console=Console(stderr=as_json)) as live:

        def show(view: RenderableType) -> None:
            if live.console.is_terminal:
                live.update(view, refresh=True)
            else:
                live.console.print(view)

        while True:
            if as_json:
                typer.echo(json.dumps(shown.to_json()))
            else:
                show(status_view(shown, rates.of(shown, time.monotonic())))
            while True:
                time.sleep(_WATCH_SECONDS)
                try:
                    shown = look()
                    break
                except (RetryableError, QueueUnavailable) as error:
                    show(Text(f"not reachable, trying again: {error}", style="yellow"))


@app.command()
@spread
def compare(
    source: SourceOption,
    target: TargetOption,
    tables: TableOptions,
    jobs: Annotated[int, typer.Option(min=1, help="Tables compared at the same time.")] = 4,
    as_json: AsJson = False,
) -> None:
    """Compare row counts and content checksums, computed on both sides; exit 1 and the first keys that differ.

    Both sides should stand still, or what is written meanwhile shows as a difference.
    """
    from airflow_parallel_apply.pipeline.compare import TableComparison
    from airflow_parallel_apply.pipeline.compare import compare as compare_tables
    from airflow_parallel_apply.pipeline.compare.view import comparison_json, comparison_view

    with told():
        ends = database_at(source, "source"), database_at(target, "target")
        with Console(stderr=True).status("comparing") as spinner:
            done: list[str] = []

            def tell(table: TableComparison) -> None:
                done.append(table.name)
                spinner.update(f"compared {len(done)} tables, last {table.name}")

            compared = compare_tables(*ends, tables.patterns(), jobs=jobs, progress=tell)
    if as_json:
        typer.echo(json.dumps(comparison_json(compared)))
    else:
        console().print(comparison_view(compared))
    sys.exit(0 if compared.equal else 1)


@app.command()
def stop(
    pipeline: Pipeline,
    target: TargetOption,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait until every channel is stopped; 0: none.")] = 0,
    queue: QueueOption = "",
) -> None:
    """Stop a running pipeline cleanly: every channel at one seqno. The next run goes on from there."""
    from airflow_parallel_apply.pipeline.run import request_stop
    from airflow_parallel_apply.pipeline.status import read_status

    with told():
        endpoint = database_at(target, "target")
        steered = queue_at(queue)
        state = request_stop(pipeline, endpoint, queue=steered)
        typer.echo(f"stop markers are behind seqno {state.stop_seqno} in {state.channels} channels ({state.phase})")
        deadline = time.monotonic() + wait
        while wait:
            seqnos = {channel.seqno for channel in read_status(endpoint, pipeline, queue=steered).channels}
            if seqnos == {state.stop_seqno}:
                typer.echo(f"stopped: every channel at seqno {state.stop_seqno}")
                return
            if time.monotonic() > deadline:
                typer.echo(f"error: not stopped after {wait:g} s; channels are at {sorted(seqnos)}", err=True)
                sys.exit(1)
            time.sleep(0.5)


@app.command()
def drop(
    pipeline: Pipeline,
    source: SourceOption,
    target: TargetOption,
    log_url: Annotated[str | None, typer.Option("--log-url", help="The log's directory, where it shall know.")] = None,
    log: Annotated[bool, typer.Option("--log", help="Remove the log's directory, too.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also while a run is alive: its sessions are ended.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    queue: QueueOption = "",
    as_json: AsJson = False,
) -> None:
    """Remove a pipeline: slot and publication at the source, its rows at the target, its tasks in a queue elsewhere;
    exit 1 when something of that is left.

    The tables that it follows stay as they are, on both sides. What is gone already is fine; of a side that cannot be
    reached the commands are printed.
    """
    from airflow_parallel_apply.pipeline.drop import drop_pipeline

    if log and log_url is None:
        raise typer.BadParameter("--log needs --log-url")
    if not yes and not _agreed(f"Remove pipeline {pipeline}? What it did not apply yet is lost for it."):
        sys.exit(1)
    with told():
        ends = database_at(source, "source"), database_at(target, "target")
        removal = drop_pipeline(pipeline, *ends, queue=queue_at(queue), log_url=log_url, with_log=log, force=force)
    if as_json:
        typer.echo(json.dumps(removal.to_json()))
    else:
        for line in removal.done or (() if removal.left else ("everything is gone already",)):
            typer.echo(line)
        for leftover in removal.left:
            typer.echo(f"left: {leftover.what}")
            if leftover.command:
                typer.echo(f"  {leftover.side}: {leftover.command}")
    sys.exit(1 if any(leftover.side is not Side.LOG for leftover in removal.left) else 0)


@app.command()
def purge(
    target: TargetOption,
    log_url: LogUrl,
    other_target: Annotated[
        list[str], typer.Option("--other-target", help="Where other pipelines apply this log; may be repeated.")
    ] = [],  # noqa: B006
    keep: Annotated[int, typer.Option(min=0, help="Keep the log's last so many transactions.")] = 0,
    keep_hours: Annotated[float, typer.Option(min=0, help="Keep what was committed within so many hours.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Remove from a log what every pipeline that reads it has applied, and the plans of that; runs may go on.

    Refused when a pipeline that reads the log is not at one of the targets. Files go ten minutes later, with the next
    capture or purge, so that nobody who still scans them is disturbed.
    """
    from airflow_parallel_apply.pipeline.purge import purge_log

    with told():
        ends = [database_at(target, "target"), *(database_at(other, "other-target") for other in other_target)]
        older_than = datetime.now(UTC) - timedelta(hours=keep_hours) if keep_hours else None
        purged = purge_log(log_url, ends, keep_transactions=keep, older_than=older_than)
    if as_json:
        typer.echo(json.dumps(purged.to_json()))
        return
    typer.echo(f"every pipeline has applied up to seqno {purged.needed_seqno}")
    typer.echo(
        f"purged {purged.segments} segments ({purged.file_bytes / 2**20:,.1f} MB of rows) and {purged.epochs} epochs; "
        f"the log begins behind seqno {purged.purged_seqno}"
    )


def _config(
    pipeline: str, log_url: str, tables: TableOptions, run: RunOptions, routing: RoutingOptions
) -> PipelineConfig:
    return routing.config(
        pipeline=pipeline,
        log_url=log_url,
        tables=tables.patterns(),
        start=run.start,
        create_tables=run.create_tables,
        ddl=run.ddl,
    )


def _agreed(question: str) -> bool:
    try:
        return typer.confirm(question)
    except typer.Abort:
        typer.echo("\nNothing was removed. Without a terminal to ask: --yes.", err=True)
        return False


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="parallel-apply")
