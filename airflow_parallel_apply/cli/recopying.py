"""`parallel-apply recopy`: tables copied anew while their pipeline stays what it is."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from airflow_parallel_apply.cli.addresses import database_at, target_at
from airflow_parallel_apply.cli.app import LedgerOption, LogSlotOption, SourceOption, TargetOption, app, config_of_log
from airflow_parallel_apply.commands import AsJson, LogUrl, Pipeline, reporting_errors, table_names


@app.command()
def recopy(
    pipeline: Pipeline,
    source: SourceOption,
    target: TargetOption,
    log_url: LogUrl,
    table: Annotated[
        list[str],
        typer.Option("--table", help="schema.table; of a partitioned table the root. May be repeated."),
    ],
    create_tables: Annotated[
        bool, typer.Option("--create-tables", help="Create tables that the target lacks, as the source has them.")
    ] = False,
    ledger: LedgerOption = "",
    slot: LogSlotOption = "",
    as_json: AsJson = False,
) -> None:
    """Replace some tables' rows at the target by the source's; the pipeline keeps its positions, plan and log.

    Use it if the changes no longer determine a table's rows: the table was created again, partitions were attached with
    rows, the publication was altered, or somebody changed rows at the target. It also brings in a table with rows that
    is new to the pipeline.

    No run may own the pipeline meanwhile. Changes from before the copy are passed over. Until the next run has passed
    them, the table is ahead of the others. If the command is interrupted, run it again.
    """
    from airflow_parallel_apply.pipeline.copy.open import recopy_tables
    from airflow_parallel_apply.pipeline.copy.protocol import RecopyProgress
    from airflow_parallel_apply.pipeline.source.open import source_connector

    names = table_names(table)
    with reporting_errors(pipeline):
        config = replace(config_of_log(pipeline, log_url, slot), create_tables=create_tables)
        ends = database_at(source, "source"), target_at(target, ledger)
        bar = Progress(
            BarColumn(),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        with bar:
            task = bar.add_task("waiting for the tables", total=1.0)

            def show(progress: RecopyProgress) -> None:
                bar.update(task, completed=progress.fraction, description=str(progress))

            done = recopy_tables(config, *ends, names, report=show)
    shown = [{**asdict(one), "offset": source_connector(ends[0]).show_offset(one.offset)} for one in done]
    if as_json:
        typer.echo(json.dumps({"pipeline": pipeline, "tables": shown}))
        return
    if not shown:
        typer.echo("These tables are gone at the source: nothing more of them is applied, and no copy is asked for.")
        return
    for one in shown:
        typer.echo(f"{one['schema']}.{one['table']}: {one['rows']:,} rows, as they were at offset {one['offset']}")
    typer.echo("Until a run has passed that offset they are ahead of the other tables; from then on green means equal.")
