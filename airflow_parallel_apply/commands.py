"""The common part of a pipeline's commands: the options that describe it, and the way in which they report an error.

Typer makes an option of each parameter of a command. `spread` lets a command take a dataclass of options instead, so
that what several commands ask for is written once.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import typer
from rich.console import Console

from airflow_parallel_apply.pipeline.config import (
    DdlPolicy,
    Endpoint,
    PartitionerName,
    PipelineConfig,
    Start,
    StoreName,
    TablePatterns,
    shard_pairs,
)
from airflow_parallel_apply.pipeline.errors import ConfigurationError, ParallelApplyError, RetryableError
from airflow_parallel_apply.pipeline.open import place_of
from airflow_parallel_apply.queue.model import QueueError

Pipeline = Annotated[str, typer.Option(help="The pipeline's name.")]
LogUrl = Annotated[str, typer.Option("--log-url", help="The log's directory: file:///… or a path.")]
Channels = Annotated[int, typer.Option(min=1, max=64, help="Number of channels.")]
Include = Annotated[list[str], typer.Option("--include", help="Tables, as schema.table with * and ?; may be repeated.")]
Exclude = Annotated[list[str], typer.Option("--exclude", help="Tables to leave out, likewise; may be repeated.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Result = TypeVar("Result")

_FILE_WIDTH: Final = 200
_AGAIN: Final = " A command tries nothing again by itself: run it once more."


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """The options that choose tables."""

    include: Include = field(default_factory=lambda: [*TablePatterns().include])
    exclude: Exclude = field(default_factory=list)

    def patterns(self) -> TablePatterns:
        """Checked."""
        return TablePatterns(include=tuple(self.include), exclude=tuple(self.exclude))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingOptions:
    """The options of the routing: how rows find their channel."""

    channels: Channels = 4
    partitioner: Annotated[
        str, typer.Option(help="key, shard, shard_list, round_robin, or an installed one's name.")
    ] = PartitionerName.KEY
    shard_by: Annotated[
        list[str], typer.Option(help="With shards: an expression, or pattern=expression; may be repeated.")
    ] = field(default_factory=list)
    shard_file: Annotated[str, typer.Option(help="With shard_list: the file that gives shards their channels.")] = ""

    store: Annotated[
        StoreName,
        typer.Option(
            help="Where a channel's changes wait. log: in the log, scanned by channel; channel_log: in a log of the "
            "channel's own; memory: in a router; auto: chosen by the partitioner."
        ),
    ] = StoreName.AUTO

    def config(self, **more: Any) -> PipelineConfig:
        """With what else the configuration takes. Errors: `ConfigurationError`."""
        return PipelineConfig(
            channels=self.channels,
            partitioner=self.partitioner,
            shard_by=shard_pairs(self.shard_by),
            shard_file=self.shard_file,
            store=self.store,
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run on which both sides depend."""

    start: Annotated[
        Start, typer.Option(help="copy: copy the source's rows; empty: there are none; equal: both sides are equal.")
    ] = Start.COPY
    slot: Annotated[
        str,
        typer.Option(
            help="Name of slot and publication at the source; all pipelines of one log share them.",
            show_default="parallel_apply_PIPELINE",
        ),
    ] = ""
    create_tables: Annotated[
        bool,
        typer.Option(
            "--create-tables", help="With start copy: create tables that the target lacks, as the source has them."
        ),
    ] = False
    ddl: Annotated[
        DdlPolicy,
        typer.Option(help="What runs do with changed columns. refuse: the target must have the source's columns now."),
    ] = DdlPolicy.REFUSE


def spread(command: Callable[..., Result]) -> Callable[..., Result]:
    """Show Typer the fields of each parameter that is a dataclass; the command gets the dataclass."""
    hints = get_type_hints(command, include_extras=True)
    taken: dict[str, type[Any]] = {
        name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)
    }

    @functools.wraps(command)
    def called(**given: Any) -> Result:
        for name, kind in taken.items():
            given[name] = kind(**{option.name: given.pop(option.name) for option in fields(kind)})
        return command(**given)

    shown: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name in taken:
            shown += _parameters(taken[parameter.name])
        else:
            kind = hints[parameter.name]
            shown.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))
    called.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return called


@contextmanager
def reporting_errors(pipeline: str | None = None) -> Iterator[None]:
    """An error of ours is one line and exit code 1, not a trace; Ctrl-C ends quietly. What a run would try again is for
    the caller to run again. `pipeline`: the one that errors name.
    """
    try:
        yield
    except (ParallelApplyError, QueueError) as error:
        if isinstance(error, ParallelApplyError):
            error.at(pipeline=pipeline)
        typer.echo(f"error: {error}{_AGAIN if isinstance(error, RetryableError) else ''}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def console() -> Console:
    """A terminal as wide as it is; a file or a pipe wide enough that nothing is cut."""
    found = Console()
    return found if found.is_terminal else Console(width=_FILE_WIDTH)


def named(text: str, option: str) -> Endpoint:
    """The database that an address names. Errors: `ConfigurationError` for an address that cannot be read."""
    try:
        place_of(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{option}: {error.message}", hint=error.hint) from None
    return Endpoint(conn_id=option, url=text)


def table_names(given: list[str]) -> list[tuple[str, str]]:
    """Schema and table of each --table. Errors: `typer.BadParameter`."""
    names = []
    for name in given:
        schema, dot, bare = name.partition(".")
        if not (schema and dot and bare):
            raise typer.BadParameter(f"{name!r} is not schema.table", param_hint="--table")
        names.append((schema, bare))
    return names


def _parameters(kind: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default_factory()
            if option.default_factory is not MISSING
            else inspect.Parameter.empty
            if option.default is MISSING
            else option.default,
            annotation=hints[option.name],
        )
        for option in fields(kind)
    ]
