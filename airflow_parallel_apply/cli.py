"""`parallel-apply`: what a person asks of a pipeline outside its runs, from the first check to its removal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.live import Live

from airflow_parallel_apply.pipeline.config import (
    Endpoint,
    PartitionerName,
    PipelineConfig,
    QueueEndpoint,
    Start,
    TablePatterns,
    shard_pairs,
)
from airflow_parallel_apply.pipeline.errors import ConfigurationError, ParallelApplyError
from airflow_parallel_apply.pipeline.finding import Finding, Side
from airflow_parallel_apply.queue.connect import is_service
from airflow_parallel_apply.queue.model import QueueError

app = typer.Typer(
    help="Pipelines of airflow_parallel_apply: their state, their stop, and whether both sides are equal.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

_SOURCE_HELP: Final = (
    "The source: a libpq connection string or URI, or the id of an Airflow connection. Keep passwords in the variable."
)
_TARGET_HELP: Final = (
    "The target: a libpq connection string or URI, or the id of an Airflow connection. Keep passwords in the variable."
)

Pipeline = Annotated[str, typer.Option(help="The pipeline's name.")]
SourceOption = Annotated[str, typer.Option(envvar="PARALLEL_APPLY_SOURCE", help=_SOURCE_HELP)]
TargetOption = Annotated[str, typer.Option(envvar="PARALLEL_APPLY_TARGET", help=_TARGET_HELP)]
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
LogUrl = Annotated[str, typer.Option("--log-url", help="The log's directory: file:///… or a path.")]
Include = Annotated[list[str], typer.Option("--include", help="Pattern over schema.table; may be repeated.")]
Exclude = Annotated[list[str], typer.Option("--exclude", help="Pattern over schema.table; may be repeated.")]
StartOption = Annotated[
    Start, typer.Option(help="copy: the source's rows; empty: there are none; equal: both sides hold the same.")
]
CreateTables = Annotated[
    bool, typer.Option("--create-tables", help="With start copy: make tables that the target lacks as the source has.")
]
Partitioner = Annotated[str, typer.Option(help="key, shard, shard_list, round_robin, or an installed one's name.")]
ShardBy = Annotated[list[str], typer.Option(help="With shards: an expression, or pattern=expression; may be repeated.")]
ShardFile = Annotated[str, typer.Option(help="With shard_list: the file that gives shards their channels.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def prepare(
    pipeline: Pipeline,
    source: SourceOption,
    target: TargetOption,
    log_url: LogUrl,
    include: Include = ["public.*"],  # noqa: B006  # typer copies it
    exclude: Exclude = [],  # noqa: B006
    channels: Annotated[int, typer.Option(min=1, max=64, help="Channels that the runs will use.")] = 4,
    start: StartOption = Start.COPY,
    create_tables: CreateTables = False,
    partitioner: Partitioner = PartitionerName.KEY,
    shard_by: ShardBy = [],  # noqa: B006
    shard_file: ShardFile = "",
    spark: Annotated[
        str, typer.Option(envvar="PARALLEL_APPLY_SPARK", help="Spark Connect URL for the copy; empty: a local Spark.")
    ] = "",
    queue: QueueOption = "",
) -> None:
    """Check both sides, then create publication, slot, log and the target's schema, and copy the rows that are there.

    What is there already stays. The first run does the same by itself.
    """
    from airflow_parallel_apply.pipeline.copy.protocol import Copying
    from airflow_parallel_apply.pipeline.copy.view import CopyBar
    from airflow_parallel_apply.pipeline.run import prepare as prepare_run
    from airflow_parallel_apply.spark.copier import spark_copier

    with _told():
        config = PipelineConfig(
            pipeline=pipeline,
            log_url=log_url,
            tables=TablePatterns(include=tuple(include), exclude=tuple(exclude)),
            channels=channels,
            start=start,
            create_tables=create_tables,
            partitioner=partitioner,
            shard_by=shard_pairs(shard_by),
            shard_file=shard_file,
        )
        ends = _endpoint(source, "source"), _endpoint(target, "target")
        with CopyBar() as bar, spark_copier(spark or None, *ends) as copier:
            copying = Copying(copier=copier, report=bar.show, cancelled=lambda: False)
            prepared = prepare_run(config, *ends, queue=_queue(queue), copying=copying)
    for line in prepared.created or ("everything is there already",):
        typer.echo(line)
    typer.echo(f"follows {len(prepared.tables)} tables: {', '.join(prepared.tables)}")


@app.command()
def check(
    pipeline: Pipeline,
    source: SourceOption,
    target: TargetOption,
    log_url: LogUrl,
    include: Include = ["public.*"],  # noqa: B006
    exclude: Exclude = [],  # noqa: B006
    channels: Annotated[int, typer.Option(min=1, max=64, help="Channels that the runs will use.")] = 4,
    start: StartOption = Start.COPY,
    create_tables: CreateTables = False,
    partitioner: Partitioner = PartitionerName.KEY,
    shard_by: ShardBy = [],  # noqa: B006
    shard_file: ShardFile = "",
    spark: Annotated[
        str,
        typer.Option(envvar="PARALLEL_APPLY_SPARK", help="Spark Connect URL: look from its executors, too."),
    ] = "",
    queue: QueueOption = "",
    as_json: AsJson = False,
) -> None:
    """Look for what would stand in a run's way, on both sides and in the log; exit 1 when there is an error.

    Changes nothing. Each finding comes with the command that mends it.
    """
    from airflow_parallel_apply.pipeline.check import check_pipeline
    from airflow_parallel_apply.pipeline.check.view import check_view

    with _told():
        config = PipelineConfig(
            pipeline=pipeline,
            log_url=log_url,
            tables=TablePatterns(include=tuple(include), exclude=tuple(exclude)),
            channels=channels,
            start=start,
            create_tables=create_tables,
            partitioner=partitioner,
            shard_by=shard_pairs(shard_by),
            shard_file=shard_file,
        )
        ends = _endpoint(source, "source"), _endpoint(target, "target")

        def from_workers() -> Sequence[Finding]:
            from airflow_parallel_apply.spark.preflight import worker_findings

            return worker_findings(spark, log_url, ends[1])

        checked = check_pipeline(config, *ends, queue=_queue(queue), elsewhere=from_workers if spark else tuple)
    if as_json:
        typer.echo(json.dumps(checked.to_json()))
    else:
        Console().print(check_view(checked), crop=False)
    sys.exit(0 if checked.is_good else 1)


@app.command()
def status(
    pipeline: Pipeline,
    target: TargetOption,
    log_url: Annotated[str | None, typer.Option("--log-url", help="The log, for lag behind what is captured.")] = None,
    source: Annotated[
        str | None, typer.Option(envvar="PARALLEL_APPLY_SOURCE", help=f"For what its slot holds back. {_SOURCE_HELP}")
    ] = None,
    queue: QueueOption = "",
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option(help="Show it anew every second until Ctrl-C.")] = False,
) -> None:
    """Per channel: committed seqno, lag, state and what it waits for; below it warnings of slot, log and disk."""
    from airflow_parallel_apply.pipeline.status import PipelineStatus, read_status
    from airflow_parallel_apply.pipeline.status_view import Rates, status_view

    with _told():
        ends = _endpoint(target, "target"), _endpoint(source, "source") if source else None
        steered = _queue(queue)

        def look() -> PipelineStatus:
            return read_status(ends[0], pipeline, log_url, ends[1], queue=steered)

        rates = Rates()
        first = look()
        if not watch:
            if as_json:
                typer.echo(json.dumps(first.to_json()))
            else:
                Console().print(status_view(first, rates.of(first, time.monotonic())))
            return
        if as_json:
            while True:
                typer.echo(json.dumps(look().to_json()))
                time.sleep(1)
        with Live(status_view(first, rates.of(first, time.monotonic())), auto_refresh=False) as live:
            while True:
                time.sleep(1)
                now = look()
                live.update(status_view(now, rates.of(now, time.monotonic())), refresh=True)


@app.command()
def compare(
    source: SourceOption,
    target: TargetOption,
    include: Include = ["public.*"],  # noqa: B006
    exclude: Exclude = [],  # noqa: B006
    jobs: Annotated[int, typer.Option(min=1, help="Tables compared at the same time.")] = 4,
    as_json: AsJson = False,
) -> None:
    """Compare row counts and content checksums, computed on both sides; exit 1 and the first keys that differ.

    Both sides should stand still, or what is written meanwhile shows as a difference.
    """
    from airflow_parallel_apply.pipeline.compare import TableComparison
    from airflow_parallel_apply.pipeline.compare import compare as compare_tables
    from airflow_parallel_apply.pipeline.compare.view import comparison_json, comparison_view

    with _told():
        tables = TablePatterns(include=tuple(include), exclude=tuple(exclude))
        ends = _endpoint(source, "source"), _endpoint(target, "target")
        with Console(stderr=True).status("comparing") as spinner:
            done: list[str] = []

            def tell(table: TableComparison) -> None:
                done.append(table.name)
                spinner.update(f"compared {len(done)} tables, last {table.name}")

            compared = compare_tables(*ends, tables, jobs=jobs, progress=tell)
    if as_json:
        typer.echo(json.dumps(comparison_json(compared)))
    else:
        Console().print(comparison_view(compared))
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

    with _told():
        endpoint = _endpoint(target, "target")
        steered = _queue(queue)
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
    if not yes and not typer.confirm(f"Remove pipeline {pipeline}? What it did not apply yet is lost for it."):
        sys.exit(1)
    with _told():
        ends = _endpoint(source, "source"), _endpoint(target, "target")
        removal = drop_pipeline(pipeline, *ends, queue=_queue(queue), log_url=log_url, with_log=log, force=force)
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

    with _told():
        ends = [_endpoint(target, "target"), *(_endpoint(other, "other-target") for other in other_target)]
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


@contextmanager
def _told() -> Iterator[None]:
    """An error of ours is one line and exit code 1, not a trace; Ctrl-C ends quietly."""
    try:
        yield
    except (ParallelApplyError, QueueError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _endpoint(text: str, side: str) -> Endpoint:
    """A connection string as it is; anything else is the id of an Airflow connection."""
    if _is_database(text):
        return Endpoint(conn_id=f"--{side}", dsn=text)
    try:
        from airflow_parallel_apply.hooks.connections import database
    except ImportError as error:
        raise _unresolved(text, side, "Give postgresql://user@host:port/database.") from error
    return database(text, parameter=f"--{side}")


def _queue(text: str) -> QueueEndpoint | None:
    """The same, of a queue; empty: the one in the target."""
    if not text:
        return None
    if is_service(text) or _is_database(text):
        return QueueEndpoint(conn_id="--queue", dsn=text)
    try:
        from airflow_parallel_apply.hooks.connections import queue
    except ImportError as error:
        raise _unresolved(text, "queue", "Give grpc://host:port or a connection string.") from error
    return queue(text, parameter="--queue")


def _is_database(text: str) -> bool:
    return "=" in text or text.startswith(("postgresql://", "postgres://"))


def _unresolved(text: str, side: str, hint: str) -> ConfigurationError:
    return ConfigurationError(
        f"--{side} {text!r} is no connection string, and Airflow, which could resolve it, is not installed here",
        hint=hint,
    )


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="parallel-apply")
