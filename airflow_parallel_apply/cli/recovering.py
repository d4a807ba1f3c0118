"""`parallel-apply recover`: what a run that was cut off has left at the target."""

from __future__ import annotations

import json

import typer

from airflow_parallel_apply.cli.addresses import target_at
from airflow_parallel_apply.cli.app import LedgerOption, TargetOption, app
from airflow_parallel_apply.commands import AsJson, Pipeline, reporting_errors


@app.command()
def recover(pipeline: Pipeline, target: TargetOption, ledger: LedgerOption = "", as_json: AsJson = False) -> None:
    """End what a run that was cut off left prepared at the target, which holds locks; the next run would do it, too.

    A group whose commit was decided is committed to its end, everything else is rolled back. Refused while a run is
    alive. Lanes of a former run apply nothing any more.
    """
    from airflow_parallel_apply.pipeline.admin.recover import recover_pipeline

    with reporting_errors():
        found = recover_pipeline(target_at(target, ledger), pipeline)
    if as_json:
        typer.echo(json.dumps(found.to_json()))
    elif found.finished is not None:
        typer.echo(f"committed the rest of transactions {found.finished[0]} to {found.finished[1]}")
    elif found.rolled_back:
        typer.echo(f"rolled back {found.rolled_back} prepared branches")
    else:
        typer.echo("nothing was prepared")
