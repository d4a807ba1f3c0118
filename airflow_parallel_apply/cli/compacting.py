"""`parallel-apply compact`: tables folded from the feed of a directory of files."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Annotated

import typer

from airflow_parallel_apply.cli.addresses import database_at
from airflow_parallel_apply.cli.app import TargetOption, app
from airflow_parallel_apply.commands import AsJson, LogUrl, reporting_errors

_MIB = 2**20


@app.command()
def compact(
    target: TargetOption,
    log_url: LogUrl,
    until_seqno: Annotated[
        int | None, typer.Option(help="The last transaction to fold.", show_default="all that every channel has")
    ] = None,
    memory_mb: Annotated[int, typer.Option(min=1, help="MB of rows to fold at a time.")] = 256,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove files that a snapshot covers, and former snapshots.")
    ] = False,
    grace_hours: Annotated[
        float, typer.Option(min=0, help="With --remove: only what a snapshot of at least this age replaced.")
    ] = 24.0,
    as_json: AsJson = False,
) -> None:
    """Fold the changes in a directory of files into a snapshot: the current rows of each table.

    The pipeline may run meanwhile. A snapshot appears as a whole or not at all, and builds on the one before it.
    Nothing is removed without --remove.
    """
    from airflow_parallel_apply.pipeline.compact.open import compact as compact_target
    from airflow_parallel_apply.pipeline.compact.protocol import CompactOptions
    from airflow_parallel_apply.pipeline.log.open import open_reader

    with reporting_errors():
        options = CompactOptions(
            until_seqno=until_seqno,
            memory_bytes=memory_mb * _MIB,
            remove=remove,
            grace=timedelta(hours=grace_hours),
        )
        report = compact_target(database_at(target, "target"), options, log=open_reader(log_url))
    if as_json:
        typer.echo(json.dumps(report.to_json()))
        return
    typer.echo(str(report))
    for former in report.replaced:
        typer.echo(f"left out: {former}, which another table has replaced")
