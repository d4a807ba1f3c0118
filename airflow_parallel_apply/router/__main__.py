"""`python -m airflow_parallel_apply.router`: the router runtime."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated

import typer

from airflow_parallel_apply.commands import (
    AsJson,
    LogUrl,
    Pipeline,
    RoutingOptions,
    TableOptions,
    console,
    named,
    reporting_errors,
    spread,
)
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.partition.open import routing_of
from airflow_parallel_apply.pipeline.plan.spans import EpochLimits
from airflow_parallel_apply.router.explain import explain as explain_log
from airflow_parallel_apply.router.explain import show
from airflow_parallel_apply.router.plan import plan as plan_pipeline

app = typer.Typer(
    help="Plan a change log: where epochs end, which transactions are critical, how channels fill.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

MaxChanges = Annotated[int, typer.Option(min=1, help="Rows at which an epoch closes.")]
MaxBytes = Annotated[int, typer.Option(min=1, help="Bytes of values at which an epoch closes.")]


@app.command()
@spread
def plan(
    pipeline: Pipeline,
    log_url: LogUrl,
    target: Annotated[
        str,
        typer.Option(
            envvar="PARALLEL_APPLY_TARGET",
            help="The target's address; one with a password is better kept in the variable.",
        ),
    ],
    tables: TableOptions,
    routing: RoutingOptions,
    epoch_max_changes: MaxChanges = 100_000,
    epoch_max_bytes: MaxBytes = 64 * 2**20,
    ledger: Annotated[
        str, typer.Option(envvar="PARALLEL_APPLY_LEDGER", help="The ledger's, if not in the target's database.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Extend a pipeline's plan, in its ledger, up to what its log has captured."""
    with reporting_errors():
        config = routing.config(
            pipeline=pipeline,
            log_url=log_url,
            tables=tables.patterns(),
            epoch_max_changes=epoch_max_changes,
            epoch_max_bytes=epoch_max_bytes,
        )
        end = named(target, "--target")
        report = plan_pipeline(config, replace(end, ledger=named(ledger, "--ledger")) if ledger else end)
    if as_json:
        typer.echo(json.dumps(report.to_json()))
    else:
        typer.echo(str(report))


@app.command()
@spread
def explain(
    log_url: LogUrl,
    routing: RoutingOptions,
    epoch_max_changes: MaxChanges = 100_000,
    epoch_max_bytes: MaxBytes = 64 * 2**20,
    after_seqno: Annotated[int, typer.Option(min=NO_SEQNO, help="Begin behind this seqno.")] = NO_SEQNO,
    as_json: AsJson = False,
) -> None:
    """Show what the planner makes of a log: epochs, critical transactions and why, rows and skew by channel."""
    with reporting_errors():
        config = routing.config(pipeline="explained", log_url=log_url)
        limits = EpochLimits(max_changes=epoch_max_changes, max_bytes=epoch_max_bytes)
        explanation = explain_log(
            log_url, routing=routing_of(config), limits=limits, after_seqno=after_seqno, store=config.store
        )
    if as_json:
        typer.echo(json.dumps(explanation.to_json()))
    else:
        show(explanation, console())


if __name__ == "__main__":
    app(prog_name="python -m airflow_parallel_apply.router")
