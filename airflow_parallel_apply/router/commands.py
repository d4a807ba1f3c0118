"""The commands of `python -m airflow_parallel_apply.router`, the router runtime."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import gettempdir
from typing import Annotated

import typer

from airflow_parallel_apply.commands import (
    AsJson,
    LogUrl,
    Pipeline,
    RoutingOptions,
    TableOptions,
    console,
    named,
    reporting_errors,
    spread,
)
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.partition.open import routing_of
from airflow_parallel_apply.pipeline.plan.spans import EpochLimits
from airflow_parallel_apply.pipeline.store.choice import chosen_store
from airflow_parallel_apply.router.explain import explain as explain_log
from airflow_parallel_apply.router.explain import show
from airflow_parallel_apply.router.plan import plan as plan_pipeline
from airflow_parallel_apply.service.options import (
    Listen,
    MetricsListen,
    ReadyFile,
    TlsCertificate,
    TlsClientCa,
    TlsKey,
    TokenFile,
)

app = typer.Typer(
    help="Plan a change log: where epochs end, which transactions are critical, how channels fill; and serve it to "
    "lanes and executors that do not see its directory.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

MaxChanges = Annotated[int, typer.Option(min=1, help="Rows at which an epoch closes.")]
MaxBytes = Annotated[int, typer.Option(min=1, help="Bytes of values at which an epoch closes.")]


@app.command()
@spread
def plan(
    pipeline: Pipeline,
    log_url: LogUrl,
    target: Annotated[
        str,
        typer.Option(
            envvar="PARALLEL_APPLY_TARGET",
            help="The target's address; one with a password is better kept in the variable.",
        ),
    ],
    tables: TableOptions,
    routing: RoutingOptions,
    epoch_max_changes: MaxChanges = 100_000,
    epoch_max_bytes: MaxBytes = 64 * 2**20,
    ledger: Annotated[
        str, typer.Option(envvar="PARALLEL_APPLY_LEDGER", help="The ledger's, if not in the target's database.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Extend a pipeline's plan, in its ledger, up to what its log has captured."""
    with reporting_errors():
        config = routing.config(
            pipeline=pipeline,
            log_url=log_url,
            tables=tables.patterns(),
            epoch_max_changes=epoch_max_changes,
            epoch_max_bytes=epoch_max_bytes,
        )
        end = named(target, "--target")
        report = plan_pipeline(config, replace(end, ledger=named(ledger, "--ledger")) if ledger else end)
    if as_json:
        typer.echo(json.dumps(report.to_json()))
    else:
        typer.echo(str(report))


@app.command()
@spread
def explain(
    log_url: LogUrl,
    routing: RoutingOptions,
    epoch_max_changes: MaxChanges = 100_000,
    epoch_max_bytes: MaxBytes = 64 * 2**20,
    after_seqno: Annotated[int, typer.Option(min=NO_SEQNO, help="Begin behind this seqno.")] = NO_SEQNO,
    as_json: AsJson = False,
) -> None:
    """Show what the planner makes of a log: epochs, critical transactions and why, rows and skew by channel."""
    with reporting_errors():
        config = routing.config(pipeline="explained", log_url=log_url)
        limits = EpochLimits(max_changes=epoch_max_changes, max_bytes=epoch_max_bytes)
        explanation = explain_log(
            log_url,
            routing=routing_of(config),
            limits=limits,
            after_seqno=after_seqno,
            store=chosen_store(config).store,
        )
    if as_json:
        typer.echo(json.dumps(explanation.to_json()))
    else:
        show(explanation, console())


@app.command()
def serve(
    log: Annotated[list[str] | None, typer.Option(metavar="NAME=DIRECTORY", help="A log; may be repeated.")] = None,
    logs: Annotated[
        Path | None, typer.Option(metavar="DIRECTORY", help="Each log in this directory, under its own name.")
    ] = None,
    listen: Listen = "127.0.0.1:0",
    ready_file: ReadyFile = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    token_file: TokenFile = None,
    metrics_listen: MetricsListen = None,
    max_streams: Annotated[int, typer.Option(min=1, help="Streams at once; more wait, then are sent away.")] = 256,
    memory_mb: Annotated[int, typer.Option(min=1, help="Memory of rows on their way from the log, MB.")] = 512,
    store_memory_mb: Annotated[
        int, typer.Option(min=0, help="Memory of rows that the store memory holds, MB; 0: it holds none.")
    ] = 256,
    store_disk_mb: Annotated[int, typer.Option(min=0, help="Disk that they may spill to, MB.")] = 8192,
    spill: Annotated[
        Path | None, typer.Option(metavar="DIRECTORY", help="Where they spill.", show_default="that of the system")
    ] = None,
    interval: Annotated[
        float,
        typer.Option(
            min=0,
            help="Seconds of commit time that the slowest channel may lie behind before the store reads no further, "
            "for 30 s at most; 0: any.",
        ),
    ] = 0,
) -> None:
    """Serve logs over Arrow Flight until SIGTERM: log_url=grpc://host:port/NAME, and hold rows for pipelines with
    store=memory. Beyond loopback with TLS and token.
    """
    with reporting_errors():
        try:
            # Late: the other commands need no Flight.
            from airflow_parallel_apply.router.feeding.feedings import FeedingLimits, Feedings
            from airflow_parallel_apply.router.feeding.guard import GuardLimits
            from airflow_parallel_apply.router.service.limits import RouterLimits
            from airflow_parallel_apply.router.service.logs import LogPaths
            from airflow_parallel_apply.router.service.process import RouterServing
            from airflow_parallel_apply.router.service.process import serve as serve_until_stopped
            from airflow_parallel_apply.service.listening import read_token
        except ImportError as error:
            raise ConfigurationError(
                f"the router's service needs {error.name}",
                hint="pip install 'airflow-provider-parallel-apply[service]'.",
            ) from error
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        try:
            serving = RouterServing(
                logs=LogPaths(named=_named_paths(log or ()), within=logs),
                listen=listen,
                ready_file=ready_file,
                tls_certificate=tls_certificate,
                tls_key=tls_key,
                tls_client_ca=tls_client_ca,
                token=None if token_file is None else read_token(token_file),
                metrics_listen=metrics_listen,
                limits=RouterLimits(max_streams=max_streams, memory_bytes=memory_mb * 2**20),
            )
            held = FeedingLimits(
                memory_bytes=store_memory_mb * 2**20,
                disk_bytes=store_disk_mb * 2**20,
                guard=GuardLimits(interval=timedelta(seconds=interval) if interval else None),
            )
            serve_until_stopped(serving, lambda logs: Feedings(logs, held, spill or Path(gettempdir())))
        except ValueError as error:
            raise ConfigurationError(str(error), op="serve") from error


@app.command()
def health(
    url: Annotated[
        str,
        typer.Argument(
            envvar="PARALLEL_APPLY_ROUTER",
            show_envvar=True,
            help="grpc://host:port or grpcs://:token@host:port?ca=FILE. With a token in it, use the environment.",
        ),
    ],
) -> None:
    """Ask a router whether it serves, and which logs; exit code 1 where it does not."""
    with reporting_errors():
        from airflow_parallel_apply.pipeline.stream.address import router_address
        from airflow_parallel_apply.pipeline.stream.client import StreamClient

        found = StreamClient(router_address(url), patience=timedelta(0)).call("health", {})
    typer.echo(json.dumps(found))
    if found["status"] != "serving":
        raise typer.Exit(1)


def _named_paths(options: Sequence[str]) -> dict[str, Path]:
    pairs = [option.partition("=") for option in options]
    if any(not name or not path for name, _, path in pairs):
        raise ValueError("--log takes NAME=DIRECTORY")
    return {name: Path(path).absolute() for name, _, path in pairs}
