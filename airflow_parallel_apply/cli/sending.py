"""`parallel-apply install-ddl-capture`: which DDL messages of a source count."""

from __future__ import annotations

from typing import Annotated

import typer

from airflow_parallel_apply.cli.addresses import database_at
from airflow_parallel_apply.cli.app import SourceOption, app
from airflow_parallel_apply.commands import reporting_errors


@app.command("install-ddl-capture")
def install_ddl_capture(
    source: SourceOption,
    grant_to: Annotated[
        list[str], typer.Option("--grant-to", help="A role that may send DDL to targets; may be repeated.")
    ] = [],  # noqa: B006
) -> None:
    """Install parallel_apply.send_ddl at a source. Only what it sends counts as DDL.

    If a superuser runs this, it also installs an event trigger, which captures how followed tables change.

    Pipelines with ddl=apply run what is sent as the target's role. So grant it only to whom you would give that role.
    The command may be run again; what was sent before stays valid.
    """
    from airflow_parallel_apply.pipeline.source.open import install_ddl_capture_at

    with reporting_errors():
        for line in install_ddl_capture_at(database_at(source, "source"), grant_to=grant_to):
            typer.echo(line)
