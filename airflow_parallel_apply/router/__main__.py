"""`python -m airflow_parallel_apply.router`: the router runtime."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console

from airflow_parallel_apply.pipeline.config import Endpoint, PartitionerName, PipelineConfig, TablePatterns, shard_pairs
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.event import NO_SEQNO
from airflow_parallel_apply.pipeline.partition.open import routing_of
from airflow_parallel_apply.pipeline.plan.planner import EpochLimits
from airflow_parallel_apply.router.explain import explain as explain_log
from airflow_parallel_apply.router.explain import show
from airflow_parallel_apply.router.plan import plan as plan_pipeline

app = typer.Typer(
    help="Plan a change log: where epochs end, which transactions are critical, how channels fill.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

LogUrl = Annotated[str, typer.Option("--log-url", help="The log's directory: file:///… or a path.")]
Channels = Annotated[int, typer.Option(min=1, max=64, help="Number of channels.")]
MaxChanges = Annotated[int, typer.Option(min=1, help="Rows at which an epoch closes.")]
MaxBytes = Annotated[int, typer.Option(min=1, help="Bytes of values at which an epoch closes.")]
Include = Annotated[list[str], typer.Option("--include", help="Pattern over schema.table; may be repeated.")]
Exclude = Annotated[list[str], typer.Option("--exclude", help="Pattern over schema.table; may be repeated.")]
Partitioner = Annotated[str, typer.Option(help="key, shard, shard_list, round_robin, or an installed one's name.")]
ShardBy = Annotated[
    list[str],
    typer.Option(help="With shards: an expression, or pattern=expression; may be repeated."),
]
ShardFile = Annotated[str, typer.Option(help="With shard_list: the file that gives shards their channels.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def plan(
    pipeline: Annotated[str, typer.Option(help="The pipeline's name.")],
    log_url: LogUrl,
    target: Annotated[
        str,
        typer.Option(
            envvar="PARALLEL_APPLY_TARGET",
            help="The target's libpq connection string or URI; one with a password is better kept in the variable.",
        ),
    ],
    channels: Channels = 4,
    partitioner: Partitioner = PartitionerName.KEY,
    shard_by: ShardBy = [],  # noqa: B006  # typer copies it
    shard_file: ShardFile = "",
    epoch_max_changes: MaxChanges = 100_000,
    epoch_max_bytes: MaxBytes = 64 * 2**20,
    include: Include = ["public.*"],  # noqa: B006
    exclude: Exclude = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Extend a pipeline's plan, in its target, up to what its log has captured."""
    with _told():
        config = PipelineConfig(
            pipeline=pipeline,
            log_url=log_url,
            tables=TablePatterns(include=tuple(include), exclude=tuple(exclude)),
            channels=channels,
            partitioner=partitioner,
            shard_by=shard_pairs(shard_by),
            shard_file=shard_file,
            epoch_max_changes=epoch_max_changes,
            epoch_max_bytes=epoch_max_bytes,
        )
        report = plan_pipeline(config, Endpoint(conn_id="--target", dsn=target))
    if as_json:
        typer.echo(json.dumps(report.to_json()))
    elif report.left_to_open:
        typer.echo(f"planned up to seqno {report.planned_seqno}; another run owns the pipeline and will plan the rest")
    else:
        typer.echo(
            f"planned up to seqno {report.planned_seqno}: {report.epochs} new epochs, "
            f"{report.critical} of them critical, {report.rows:,} rows"
        )


@app.command()
def explain(
    log_url: LogUrl,
    channels: Channels = 4,
    partitioner: Partitioner = PartitionerName.KEY,
    shard_by: ShardBy = [],  # noqa: B006  # typer copies it
    shard_file: ShardFile = "",
    epoch_max_changes: MaxChanges = 100_000,
    epoch_max_bytes: MaxBytes = 64 * 2**20,
    after_seqno: Annotated[int, typer.Option(min=NO_SEQNO, help="Begin behind this seqno.")] = NO_SEQNO,
    as_json: AsJson = False,
) -> None:
    """Show what the planner makes of a log: epochs, critical transactions and why, rows and skew by channel."""
    with _told():
        config = PipelineConfig(
            pipeline="explained",
            log_url=log_url,
            channels=channels,
            partitioner=partitioner,
            shard_by=shard_pairs(shard_by),
            shard_file=shard_file,
        )
        limits = EpochLimits(max_changes=epoch_max_changes, max_bytes=epoch_max_bytes)
        explanation = explain_log(log_url, routing=routing_of(config), limits=limits, after_seqno=after_seqno)
    if as_json:
        typer.echo(json.dumps(explanation.to_json()))
    else:
        show(explanation, Console())


@contextmanager
def _told() -> Iterator[None]:
    """An error of ours is one line and exit code 1, not a trace."""
    try:
        yield
    except ParallelApplyError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    app(prog_name="python -m airflow_parallel_apply.router")
