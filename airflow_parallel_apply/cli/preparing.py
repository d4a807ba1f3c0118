"""`parallel-apply prepare` and `check`: what a run needs, made or only looked at."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from airflow_parallel_apply.cli.addresses import database_at, queue_at, spark_at, target_at
from airflow_parallel_apply.cli.app import (
    SPARK_HELP,
    LedgerOption,
    QueueOption,
    SourceOption,
    TargetOption,
    app,
    config_of,
)
from airflow_parallel_apply.commands import (
    AsJson,
    LogUrl,
    Pipeline,
    RoutingOptions,
    RunOptions,
    TableOptions,
    console,
    reporting_errors,
    spread,
)
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.spark.endpoint import copier_on, findings_from


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
        str, typer.Option(envvar="PARALLEL_APPLY_SPARK", help=f"For the copy: {SPARK_HELP}; empty: a local Spark.")
    ] = "",
    queue: QueueOption = "",
    ledger: LedgerOption = "",
) -> None:
    """Check both sides, create publication, slot, log and the target's schema, and copy the existing rows.

    What exists already stays. The first run does the same by itself.
    """
    from airflow_parallel_apply.cli.copy_bar import CopyBar
    from airflow_parallel_apply.pipeline.copy.protocol import Copying
    from airflow_parallel_apply.pipeline.run import prepare as prepare_run

    with reporting_errors(pipeline):
        config = config_of(pipeline, log_url, tables, run, routing)
        ends = database_at(source, "source"), target_at(target, ledger)
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
        str, typer.Option(envvar="PARALLEL_APPLY_SPARK", help=f"Check from its executors, too: {SPARK_HELP}.")
    ] = "",
    queue: QueueOption = "",
    ledger: LedgerOption = "",
    as_json: AsJson = False,
) -> None:
    """Look for everything that would stop a run, on both sides and in the log; exit 1 if there is an error.

    Changes nothing. Each finding comes with the command that fixes it.
    """
    from airflow_parallel_apply.cli.check_view import check_view
    from airflow_parallel_apply.pipeline.check import check_pipeline

    with reporting_errors(pipeline):
        config = config_of(pipeline, log_url, tables, run, routing)
        ends = database_at(source, "source"), target_at(target, ledger)
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
