"""`parallel-apply drop` and `purge`: what nobody needs any more."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from airflow_parallel_apply.cli.addresses import database_at, queue_at, target_at
from airflow_parallel_apply.cli.app import LedgerOption, QueueOption, SlotOption, SourceOption, TargetOption, app
from airflow_parallel_apply.commands import AsJson, LogUrl, Pipeline, reporting_errors
from airflow_parallel_apply.pipeline.model.finding import Side


@app.command()
def drop(
    pipeline: Pipeline,
    source: SourceOption,
    target: TargetOption,
    log_url: Annotated[
        str | None, typer.Option("--log-url", help="The log's directory, to remove the pipeline from its readers.")
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="Remove the log's directory, too.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Even while a run is alive; end its sessions.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    queue: QueueOption = "",
    ledger: LedgerOption = "",
    slot: SlotOption = "",
    as_json: AsJson = False,
) -> None:
    """Remove a pipeline: its slot and publication, its positions, plan and staging, and its tasks in any queue.

    The tables that it follows stay as they are, on both sides. For a side that cannot be reached it prints the
    commands, and exits with 1 if something but the log is left. It may be repeated.
    """
    from airflow_parallel_apply.pipeline.admin.drop import drop_pipeline

    if log and log_url is None:
        raise typer.BadParameter("--log needs --log-url")
    if not yes and not _agreed(f"Remove pipeline {pipeline}? What it did not apply yet is lost for it."):
        sys.exit(1)
    with reporting_errors(pipeline):
        ends = database_at(source, "source"), target_at(target, ledger)
        removal = drop_pipeline(
            pipeline, *ends, slot=slot, queue=queue_at(queue), log_url=log_url, with_log=log, force=force
        )
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
        list[str], typer.Option("--other-target", help="Another target of this log; may be repeated.")
    ] = [],  # noqa: B006
    keep: Annotated[int, typer.Option(min=0, help="Keep at least this many of the log's last transactions.")] = 0,
    keep_hours: Annotated[float, typer.Option(min=0, help="Keep what was committed in the last so many hours.")] = 0,
    ledger: LedgerOption = "",
    as_json: AsJson = False,
) -> None:
    """Remove from a log, and from plans, what every pipeline that reads the log has applied. Runs may continue.

    Refuses if a pipeline that reads the log is at none of the given targets. The files are deleted ten minutes later,
    by the next capture or purge, because others may still be reading them.
    """
    from airflow_parallel_apply.pipeline.admin.purge import purge_log

    with reporting_errors():
        ends = [target_at(target, ledger), *(database_at(other, "other-target") for other in other_target)]
        older_than = datetime.now(UTC) - timedelta(hours=keep_hours) if keep_hours else None
        purged = purge_log(log_url, ends, keep_transactions=keep, older_than=older_than)
    if as_json:
        typer.echo(json.dumps(purged.to_json()))
        return
    typer.echo(f"every pipeline has applied up to seqno {purged.needed_seqno}")
    typer.echo(
        f"purged {purged.segments} segments ({purged.file_bytes / 2**20:,.1f} MB of rows) and {purged.epochs} epochs; "
        f"the log begins with seqno {purged.purged_seqno + 1}"
    )
    for kept in purged.plans_kept:
        typer.echo(f"the plan of {kept} stays as it is: its ledger was not named (--target with --ledger)")


def _agreed(question: str) -> bool:
    try:
        return typer.confirm(question)
    except typer.Abort:
        typer.echo("\nNothing was removed. Without a terminal to ask: --yes.", err=True)
        return False
