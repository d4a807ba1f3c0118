"""`parallel-apply export`: a log's changes, or a query's rows, as files that others read or as messages of topics."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from airflow_parallel_apply.cli.addresses import database_at
from airflow_parallel_apply.cli.app import app
from airflow_parallel_apply.commands import AsJson, reporting_errors
from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.encode.formats import Format
from airflow_parallel_apply.pipeline.encode.progress import Encoded
from airflow_parallel_apply.pipeline.errors import ConfigurationError

_DAY_HOURS = 24.0


@app.command()
def export(
    to: Annotated[
        str,
        typer.Option(help="The place: a directory, a URL such as s3://bucket/changes, or kafka://broker:9092/prefix."),
    ],
    log_url: Annotated[str, typer.Option("--log-url", help="The log's directory: file:///… or a path.")] = "",
    format_: Annotated[
        Format | None,
        typer.Option("--format", help="The format.", show_default="parquet; for topics json"),
    ] = None,
    include: Annotated[list[str], typer.Option(help="Pattern over schema.table; may be repeated.")] = ["*.*"],  # noqa: B006
    exclude: Annotated[list[str], typer.Option(help="Pattern over schema.table; may be repeated.")] = [],  # noqa: B006
    threads: Annotated[int, typer.Option(help="Workers that encode and write in parallel.")] = 2,
    until_seqno: Annotated[
        int | None, typer.Option(help="The last transaction to export.", show_default="the log's last one")
    ] = None,
    text: Annotated[
        list[str], typer.Option(help="Keep the source's text of this schema.table.column; may be repeated.")
    ] = [],  # noqa: B006
    sql: Annotated[str, typer.Option(help="Export a query's rows instead of a log's changes.")] = "",
    source: Annotated[
        str, typer.Option(help="With --sql: the database that runs it, an address or a connection id.")
    ] = "",
    export_id: Annotated[str, typer.Option(help="With --sql: an export with this id is written once only.")] = "",
    table: Annotated[
        str, typer.Option(help="With --sql: the schema.table that names the folder or topic.")
    ] = "query.rows",
    key: Annotated[list[str], typer.Option(help="With --sql: a column of the messages' key; may be repeated.")] = [],  # noqa: B006
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Also remove leftovers of exports killed more than a day ago.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a log's further changes, or a query's rows, to a directory or to topics, in one commit.

    The first export begins with the log's first transaction, each further one where the last one ended. Run it again at
    any time: nothing is written twice.

    Readers take the files that the manifests in _manifests name, or read topics with read_committed.
    """
    from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
    from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
    from airflow_parallel_apply.pipeline.export import ExportOptions, QueryOptions, export_changes, export_query
    from airflow_parallel_apply.pipeline.log.open import open_reader

    bar = Progress(
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
    with reporting_errors(), bar:
        _require_one(log_url, sql, source, export_id)
        options = ExportOptions(
            format=format_,
            tables=TablePatterns(include=tuple(include), exclude=tuple(exclude)),
            threads=threads,
            until_seqno=until_seqno,
            texts=tuple(text),
        )
        task = bar.add_task("reading", total=1.0)

        def show(encoded: Encoded) -> None:
            bar.update(task, completed=encoded.fraction, description=str(encoded))

        orphans = Dataset(FilePlace(to)).sweep(grace=timedelta(hours=_DAY_HOURS)) if sweep else ()
        if sql:
            query = QueryOptions(sql=sql, export_id=export_id, table=table, key=tuple(key))
            report = export_query(database_at(source, "source"), query, to, options, report=show)
        else:
            report = export_changes(open_reader(log_url), to, options, report=show)
    if as_json:
        typer.echo(json.dumps({**report.to_json(), "swept": list(orphans)}))
        return
    if orphans:
        typer.echo(f"removed {len(orphans)} files that no manifest names")
    typer.echo(str(report))
    if report.texts:
        typer.echo(f"columns that keep the source's text: {', '.join(report.texts)}")


def _require_one(log_url: str, sql: str, source: str, export_id: str) -> None:
    if bool(log_url) == bool(sql):
        raise ConfigurationError(
            "exactly one of --log-url and --sql says what to export", hint="Give a log, or a query with its --source."
        )
    if sql and not (source and export_id):
        raise ConfigurationError(
            "--sql needs --source and --export-id",
            hint="Name the database that runs it, and an id for this export, such as the day: it is exported once.",
        )
