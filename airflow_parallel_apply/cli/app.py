"""The command `parallel-apply` itself, and the options that more than one of its commands take."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from airflow_parallel_apply.commands import RoutingOptions, RunOptions, TableOptions
from airflow_parallel_apply.pipeline.config import PipelineConfig, TablePatterns

_ORDER: Final = (
    "check", "prepare", "status", "stop", "compare", "recopy", "vouch", "adopt-source", "install-ddl-capture",
    "export", "compact", "purge", "recover", "drop",
)  # fmt: skip
"""From a pipeline's first day to its last."""


class _Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=_ORDER.index)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Its help, one line a paragraph: the docstring's lines would end in the middle of a terminal's."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.help:
            command.help = "\n\n".join(" ".join(part.split()) for part in command.help.split("\n\n"))
        return command


app = typer.Typer(
    cls=_Commands,
    help="Work with pipelines of airflow_parallel_apply outside their runs, from the first check to their removal.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

DATABASE_HELP: Final = (
    "a libpq connection string or URI, or the id of an Airflow connection. Keep passwords in the variable."
)
SPARK_HELP: Final = (
    "the id of an Airflow connection, a Spark Connect URL (sc://host:port), or a cluster's master (spark://host:port)"
)
SourceOption = Annotated[str, typer.Option(envvar="PARALLEL_APPLY_SOURCE", help=f"The source: {DATABASE_HELP}")]
TargetOption = Annotated[
    str,
    typer.Option(
        envvar="PARALLEL_APPLY_TARGET",
        help="The target: a libpq connection string or URI, another target's address (mariadb://…, delta:///…, "
        "files+file:///…, kafka://…), or the id of an Airflow connection. Keep passwords in the variable.",
    ),
]
LedgerOption = Annotated[
    str,
    typer.Option(
        "--ledger",
        envvar="PARALLEL_APPLY_LEDGER",
        help=f"The pipeline's ledger, if not in the target's database: {DATABASE_HELP}",
        show_default="in the target",
    ),
]
SlotOption = Annotated[
    str,
    typer.Option(
        "--slot",
        help="The slot, if not the pipeline's own: pipelines of one log share a slot.",
        show_default="parallel_apply_PIPELINE",
    ),
]
LogSlotOption = Annotated[
    str,
    typer.Option("--slot", help="The slot that feeds the log.", show_default="the one that the log names"),
]
QueueOption = Annotated[
    str,
    typer.Option(
        "--queue",
        envvar="PARALLEL_APPLY_QUEUE",
        help="The pipeline's queue, if not in the target: grpc://host:port, grpcs://:token@host:port?ca=FILE, a libpq "
        "connection string, or the id of an Airflow connection. Keep tokens in the variable.",
        show_default="in the target",
    ),
]


def config_of_log(pipeline: str, log_url: str, slot: str) -> PipelineConfig:
    """A pipeline whose log is there, which knows its slot and tables: hints need not name them. Errors: `LogError`,
    too.
    """
    from airflow_parallel_apply.pipeline.log.open import reader_if_there

    log = None if slot else reader_if_there(log_url)
    stream = slot if log is None else log.identity.stream
    return PipelineConfig(pipeline=pipeline, log_url=log_url, slot=stream, tables=TablePatterns(include=("*",)))


def config_of(
    pipeline: str, log_url: str, tables: TableOptions, run: RunOptions, routing: RoutingOptions
) -> PipelineConfig:
    """The pipeline that the options describe. Errors: `ConfigurationError`."""
    return routing.config(
        pipeline=pipeline,
        log_url=log_url,
        slot=run.slot,
        tables=tables.patterns(),
        start=run.start,
        create_tables=run.create_tables,
        ddl=run.ddl,
    )
