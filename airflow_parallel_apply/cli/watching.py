"""`parallel-apply status`, `compare` and `stop`: a pipeline that runs, or has run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final, Never

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from airflow_parallel_apply.cli.addresses import database_at, queue_at, router_at, target_at
from airflow_parallel_apply.cli.app import DATABASE_HELP, LedgerOption, QueueOption, SourceOption, TargetOption, app
from airflow_parallel_apply.commands import AsJson, Pipeline, TableOptions, console, reporting_errors, spread
from airflow_parallel_apply.pipeline.errors import ConfigurationError, RetryableError
from airflow_parallel_apply.queue.model import QueueUnavailable

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.admin.status import PipelineStatus

_WATCH_SECONDS: Final = 1.0


@app.command()
def status(
    pipeline: Pipeline,
    target: TargetOption,
    log_url: Annotated[
        str | None, typer.Option("--log-url", help="The log: shows how far captured changes are ahead.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(envvar="PARALLEL_APPLY_SOURCE", help=f"The source, to examine its slot: {DATABASE_HELP}"),
    ] = None,
    queue: QueueOption = "",
    ledger: LedgerOption = "",
    router: Annotated[
        str,
        typer.Option(
            envvar="PARALLEL_APPLY_ROUTER",
            help="With --log-url: the router of store=memory, grpcs://… or a connection id. Empty: this host's "
            "embedded one.",
        ),
    ] = "",
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option(help="Refresh every second until Ctrl-C.")] = False,
) -> None:
    """Show each channel's committed seqno, lag, state and what it waits for, and warnings about slot, log and disk."""
    from airflow_parallel_apply.cli.status_view import status_view
    from airflow_parallel_apply.pipeline.admin.status import read_status

    with reporting_errors(pipeline):
        ends = target_at(target, ledger), database_at(source, "source") if source else None
        steered, held = queue_at(queue), router_at(router)

        def look() -> PipelineStatus:
            return read_status(ends[0], pipeline, log_url, ends[1], queue=steered, router=held)

        first = look()
        if watch:
            _watch(first, look, as_json=as_json)
        elif as_json:
            typer.echo(json.dumps(first.to_json()))
        else:
            console().print(status_view(first, {}))


def _watch(first: PipelineStatus, look: Callable[[], PipelineStatus], *, as_json: bool) -> Never:
    """Every second, until Ctrl-C. A server that is away for a while is said so, and asked again."""
    from airflow_parallel_apply.cli.status_view import Rates, status_view

    rates, shown = Rates(), first
    with Live(auto_refresh=False, console=Console(stderr=as_json)) as live:

        def show(view: RenderableType) -> None:
            if live.console.is_terminal:
                live.update(view, refresh=True)
            else:
                live.console.print(view)

        while True:
            if as_json:
                typer.echo(json.dumps(shown.to_json()))
            else:
                show(status_view(shown, rates.of(shown, time.monotonic())))
            while True:
                time.sleep(_WATCH_SECONDS)
                try:
                    shown = look()
                    break
                except (RetryableError, QueueUnavailable) as error:
                    show(Text(f"not reachable, trying again: {error}", style="yellow"))


@app.command()
@spread
def compare(
    source: SourceOption,
    target: TargetOption,
    tables: TableOptions,
    jobs: Annotated[int, typer.Option(min=1, help="Tables to compare at the same time.")] = 4,
    as_json: AsJson = False,
) -> None:
    """Compare row counts and checksums of tables on both sides; if they differ, show the first keys and exit 1.

    Nobody should write meanwhile: what is written shows as a difference.
    """
    from airflow_parallel_apply.cli.compare_view import UnderWay, comparison_json, comparison_view
    from airflow_parallel_apply.pipeline.compare import compare as compare_tables

    with reporting_errors():
        ends = database_at(source, "source"), database_at(target, "target")
        with Console(stderr=True).status("comparing") as spinner:
            under_way = UnderWay(spinner.update)
            compared = compare_tables(
                *ends, tables.patterns(), jobs=jobs, begun=under_way.begun, progress=under_way.compared
            )
        if not compared.tables:
            names = " or ".join(tables.include) + (f", without {', '.join(tables.exclude)}" if tables.exclude else "")
            raise ConfigurationError(
                f"there is nothing to compare: no table of the source {ends[0].place} matches {names}",
                op="compare",
                hint="Is this the right database? Tables are named as schema.table, with * and ?.",
            )
    if as_json:
        typer.echo(json.dumps(comparison_json(compared)))
    else:
        console().print(comparison_view(compared))
    sys.exit(0 if compared.equal else 1)


@app.command()
def stop(
    pipeline: Pipeline,
    target: TargetOption,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait until every channel has stopped.")] = 0,
    queue: QueueOption = "",
    ledger: LedgerOption = "",
) -> None:
    """Stop a running pipeline cleanly, with every channel at the same seqno. The next run continues from there."""
    from airflow_parallel_apply.pipeline.admin.status import read_status
    from airflow_parallel_apply.pipeline.run import request_stop

    with reporting_errors(pipeline):
        endpoint = target_at(target, ledger)
        steered = queue_at(queue)
        state = request_stop(pipeline, endpoint, queue=steered)
        typer.echo(f"stop markers are behind seqno {state.stop_seqno} in {state.channels} channels ({state.phase})")
        deadline = time.monotonic() + wait
        while wait:
            seqnos = {channel.seqno for channel in read_status(endpoint, pipeline, queue=steered).channels}
            if seqnos == {state.stop_seqno}:
                typer.echo(f"stopped: every channel at seqno {state.stop_seqno}")
                return
            if time.monotonic() > deadline:
                typer.echo(f"error: not stopped after {wait:g} s; channels are at {sorted(seqnos)}", err=True)
                sys.exit(1)
            time.sleep(0.5)
