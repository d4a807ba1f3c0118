"""`parallel-apply export`: a log's changes as files that others read."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from airflow_parallel_apply.cli.app import app
from airflow_parallel_apply.commands import AsJson, LogUrl, reporting_errors
from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.encode.formats import Format
from airflow_parallel_apply.pipeline.encode.progress import Encoded

_DAY_HOURS = 24.0


@app.command()
def export(
    log_url: LogUrl,
    to: Annotated[str, typer.Option(help="The place: a directory, or a URL such as s3://bucket/changes.")],
    format_: Annotated[Format, typer.Option("--format", help="What the files are.")] = Format.PARQUET,
    include: Annotated[list[str], typer.Option(help="Pattern over schema.table; may be repeated.")] = ["*.*"],  # noqa: B006
    exclude: Annotated[list[str], typer.Option(help="Pattern over schema.table; may be repeated.")] = [],  # noqa: B006
    threads: Annotated[int, typer.Option(help="How many workers encode and write side by side.")] = 2,
    until_seqno: Annotated[
        int | None, typer.Option(help="The last transaction to export.", show_default="the log's last one")
    ] = None,
    text: Annotated[
        list[str], typer.Option(help="A column, as schema.table.column, that keeps the source's text; may be repeated.")
    ] = [],  # noqa: B006
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Remove what exports left that were killed more than a day ago, and export.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the changes of a log behind those that the place has, and commit them at once.

    The first export of a place begins with the log's first transaction, each further one where the last one ended.
    Readers take the files that the manifests below _manifests name. Run it again at any time: what is there is not
    written twice.
    """
    from airflow_parallel_apply.pipeline.encode.export import ExportOptions, export_changes
    from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
    from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
    from airflow_parallel_apply.pipeline.log.open import open_reader

    bar = Progress(
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
    with reporting_errors(), bar:
        options = ExportOptions(
            format=format_,
            tables=TablePatterns(include=tuple(include), exclude=tuple(exclude)),
            threads=threads,
            until_seqno=until_seqno,
            texts=tuple(text),
        )
        task = bar.add_task("reading the log", total=1.0)

        def show(encoded: Encoded) -> None:
            bar.update(task, completed=encoded.fraction, description=str(encoded))

        orphans = Dataset(FilePlace(to)).sweep(grace=timedelta(hours=_DAY_HOURS)) if sweep else ()
        report = export_changes(open_reader(log_url), to, options, report=show)
    if as_json:
        typer.echo(json.dumps({**report.to_json(), "swept": list(orphans)}))
        return
    if orphans:
        typer.echo(f"removed {len(orphans)} files that no manifest names")
    typer.echo(str(report))
    if report.texts:
        typer.echo(f"columns that keep the source's text: {', '.join(report.texts)}")
