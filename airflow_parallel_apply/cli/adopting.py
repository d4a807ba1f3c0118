"""`parallel-apply adopt-source`: another server in the place of a pipeline's source."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from airflow_parallel_apply.cli.addresses import database_at
from airflow_parallel_apply.cli.app import LogSlotOption, SourceOption, app, config_of_log
from airflow_parallel_apply.commands import AsJson, LogUrl, Pipeline, reporting_errors


@app.command()
def adopt_source(
    pipeline: Pipeline,
    source: SourceOption,
    log_url: LogUrl,
    before_upgrade: Annotated[
        bool, typer.Option("--before-upgrade", help="Prepare the server for the upgrade; nobody may write to it.")
    ] = False,
    slot: LogSlotOption = "",
    as_json: AsJson = False,
) -> None:
    """Let a pipeline continue with a server that replaced its source, after proving that no change was lost.

    Run it after pg_upgrade, which changes the server's identity. Run it with --before-upgrade beforehand: this advances
    the slot past everything that was committed, as pg_upgrade requires, and records that in the log.

    A promoted standby keeps the identity and needs no command: its first run proves that nothing was lost.
    """
    from airflow_parallel_apply.pipeline.capture.adoption import adopt_source as adopt
    from airflow_parallel_apply.pipeline.capture.adoption import release_source
    from airflow_parallel_apply.pipeline.source.open import source_connector

    with reporting_errors(pipeline):
        config = config_of_log(pipeline, log_url, slot)
        endpoint = database_at(source, "source")
        done = (release_source if before_upgrade else adopt)(endpoint, config)
    offset = source_connector(endpoint).show_offset(done.offset)
    if as_json:
        typer.echo(json.dumps({**asdict(done), "offset": offset}))
    elif before_upgrade:
        typer.echo(f"slot advanced to {offset}: {done.proof}. Stop the server and upgrade it now.")
    elif done.is_new:
        typer.echo(f"server {done.server} is the log's source now, in the place of {done.former}: {done.proof}")
    else:
        typer.echo(f"server {done.server} is the log's source already: {done.proof}")
