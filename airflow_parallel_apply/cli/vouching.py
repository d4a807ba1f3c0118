"""`parallel-apply vouch`: tables of which a person knows what the source does not tell."""

from __future__ import annotations

from typing import Annotated

import typer

from airflow_parallel_apply.cli.addresses import database_at
from airflow_parallel_apply.cli.app import LogSlotOption, SourceOption, app, config_of_log
from airflow_parallel_apply.commands import LogUrl, Pipeline, reporting_errors, table_names


@app.command()
def vouch(
    pipeline: Pipeline,
    source: SourceOption,
    log_url: LogUrl,
    table: Annotated[list[str], typer.Option("--table", help="A table, as schema.table; may be repeated.")],
    slot: LogSlotOption = "",
) -> None:
    """Confirm that a change of a table gave its older rows no other values, so that the pipeline can continue.

    Run it after ALTER COLUMN … TYPE without USING, for example. The error of the run that stops names the command and
    its conditions. The command confirms everything that is in doubt about the table, and prints it. Nothing is compared
    or copied.

    The next run follows the change, or refuses it, as its ddl says. Nothing else is confirmed.
    """
    from airflow_parallel_apply.pipeline.capture.adoption import vouch_for

    names = table_names(table)
    with reporting_errors(pipeline):
        config = config_of_log(pipeline, log_url, slot)
        doubts = vouch_for(database_at(source, "source"), config, names)
    typer.echo(f"{', '.join(table)}: the next run takes the older rows' values for unchanged, as you say, although:")
    for doubt in doubts:
        typer.echo(f"- {doubt}")
