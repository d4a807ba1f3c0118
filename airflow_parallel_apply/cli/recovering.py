"""`parallel-apply recover`: what a run that was cut off has left at the target."""

from __future__ import annotations

import json

import typer

from airflow_parallel_apply.cli.addresses import target_at
from airflow_parallel_apply.cli.app import LedgerOption, TargetOption, app
from airflow_parallel_apply.commands import AsJson, Pipeline, reporting_errors


@app.command()
def recover(pipeline: Pipeline, target: TargetOption, ledger: LedgerOption = "", as_json: AsJson = False) -> None:
    """End prepared transactions that an interrupted run left at the target, where they hold locks.

    A group whose commit was decided is committed completely, everything else is rolled back. The next run would do the
    same. Refused while a run is alive. Afterwards lanes of a former run can apply nothing.
    """
    from airflow_parallel_apply.pipeline.admin.recover import recover_pipeline

    with reporting_errors(pipeline):
        found = recover_pipeline(target_at(target, ledger), pipeline)
    if as_json:
        typer.echo(json.dumps(found.to_json()))
    elif found.finished is not None:
        typer.echo(f"committed the rest of transactions {found.finished[0]} to {found.finished[1]}")
    elif found.rolled_back:
        typer.echo(f"rolled back {found.rolled_back} prepared branches")
    else:
        typer.echo("nothing was prepared")
