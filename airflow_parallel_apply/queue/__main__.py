"""`python -m airflow_parallel_apply.queue`: serve a queue, make the queue's tables, look into either.

Exit codes: 0 done; 1 refused, a person has to act; 2 wrong usage; 3 the queue cannot be reached now.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import UUID

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_parallel_apply.queue import (
    Queue,
    QueueError,
    QueueMisconfigured,
    QueueUnavailable,
    TaskId,
    open_queue,
)
from airflow_parallel_apply.service.options import (
    Listen,
    MetricsListen,
    ReadyFile,
    TlsCertificate,
    TlsClientCa,
    TlsKey,
    TokenFile,
)

_REFUSED: Final = 1
_UNAVAILABLE: Final = 3

_TASK_COLUMNS: Final = (
    "sequence", "task_id", "version", "at", "claimant", "claims", "attempt", "err", "created", "modified", "value",
)  # fmt: skip
_TOO_WIDE: Final = frozenset({"version", "created", "modified"})
"""Left out where a person reads."""
_SQUEEZED: Final = frozenset({"queue", "claimant", "err", "value"})
"""Columns that a narrow terminal cuts short."""

app = typer.Typer(
    name="python -m airflow_parallel_apply.queue",
    help="The queue that workers pull from: serve it, make its tables, look into it.\n\n"
    "Exit codes: 0 done; 1 refused, a person has to act; 2 wrong usage; 3 the queue cannot be reached now.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Dsn = Annotated[
    str,
    typer.Option(
        envvar="PARALLEL_APPLY_QUEUE_DSN",
        show_envvar=True,
        help="PostgreSQL connection string, or a service: grpc://host:port, grpcs://:token@host:port?ca=FILE. With a "
        "password or token in it, use the environment: arguments are visible to all.",
    ),
]
Schema = Annotated[
    str,
    typer.Option(
        envvar="PARALLEL_APPLY_QUEUE_SCHEMA",
        show_envvar=True,
        show_default="parallel_apply",
        help="Schema of the queue's tables.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
Limit = Annotated[int | None, typer.Option(min=0, help="At most this many.", show_default="all")]


@app.command()
def migrate(dsn: Dsn, schema: Schema = "parallel_apply", as_json: AsJson = False) -> None:
    """Create the queue's tables, or bring them to this version; says what it did."""
    # Late: `--help` needs no database driver.
    from airflow_parallel_apply.queue.open import migrate_tables

    with _errors():
        done = migrate_tables(dsn, schema)
    if as_json:
        _print_json({"schema": schema, "done": list(done)})
    else:
        for line in done or (f"The queue's tables in schema {schema} are up to date.",):
            typer.echo(line)


@app.command()
def queues(
    dsn: Dsn,
    prefix: Annotated[list[str] | None, typer.Option(help="Beginning of queues' names; may be repeated.")] = None,
    limit: Limit = None,
    schema: Schema = "parallel_apply",
    as_json: AsJson = False,
) -> None:
    """Name the queues that have tasks, one in each line."""
    with _opened(dsn, schema) as queue:
        names = [found.queue for found in queue.queue_stats(prefix=prefix or (), limit=limit)]
    if as_json:
        _print_json(names)
    else:
        for name in names:
            typer.echo(name)


@app.command()
def stats(
    dsn: Dsn,
    queues: Annotated[list[str] | None, typer.Argument(help="Names of queues.", show_default="all")] = None,
    prefix: Annotated[list[str] | None, typer.Option(help="Beginning of queues' names; may be repeated.")] = None,
    limit: Limit = None,
    schema: Schema = "parallel_apply",
    as_json: AsJson = False,
) -> None:
    """Count each queue's tasks: size = claimed + available + future."""
    with _opened(dsn, schema) as queue:
        found = queue.queue_stats(prefix=prefix or (), exact=queues or (), limit=limit)
    columns = ("queue", "size", "claimed", "available", "future", "max_claims")
    _show(columns, [{name: getattr(row, name) for name in columns} for row in found], as_json)


@app.command()
def tasks(
    dsn: Dsn,
    queue_name: Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")],
    claimant: Annotated[str | None, typer.Option(help="Only those that this claimant claimed last.")] = None,
    ids: Annotated[list[UUID] | None, typer.Option("--id", help="Only this task; may be repeated.")] = None,
    limit: Limit = None,
    values: Annotated[bool, typer.Option(help="With the tasks' values.")] = True,
    schema: Schema = "parallel_apply",
    as_json: AsJson = False,
) -> None:
    """List a queue's tasks in the order in which they are handed out."""
    with _opened(dsn, schema) as queue:
        found = queue.tasks(
            queue_name,
            claimant=claimant,
            limit=limit,
            ids=[TaskId(given) for given in ids or ()],
            omit_values=not values,
        )
    columns = _TASK_COLUMNS if values else _TASK_COLUMNS[:-1]
    _show(columns, [{name: getattr(task, name) for name in columns} for task in found], as_json)


@app.command()
def serve(
    data: Annotated[Path, typer.Option(help="Directory that keeps the queue; created if it is missing.")],
    listen: Listen = "127.0.0.1:0",
    ready_file: ReadyFile = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    token_file: TokenFile = None,
    metrics_listen: MetricsListen = None,
    max_message_bytes: Annotated[int, typer.Option(min=1, help="Limit of one call.")] = 16 * 2**20,
    max_value_bytes: Annotated[int, typer.Option(min=1, help="Limit of one task's value, as JSON.")] = 2**20,
    max_queue_tasks: Annotated[int, typer.Option(min=1, help="Limit of one queue; more are rejected.")] = 10_000_000,
) -> None:
    """Serve the queue in a data directory over gRPC, until SIGTERM. Beyond loopback only with TLS and a token."""
    # Late: the other commands need no gRPC.
    with _errors():
        try:
            from airflow_parallel_apply.queue.memory import DataLimits
            from airflow_parallel_apply.queue.service.limits import ServiceLimits
            from airflow_parallel_apply.queue.service.process import Serving
            from airflow_parallel_apply.queue.service.process import serve as serve_until_stopped
            from airflow_parallel_apply.service.listening import read_token
        except ImportError as error:
            raise QueueMisconfigured(
                f"the service needs {error.name}. Hint: pip install 'airflow-provider-parallel-apply[service]'."
            ) from error
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        serving = Serving(
            data=data,
            listen=listen,
            ready_file=ready_file,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
            tls_client_ca=tls_client_ca,
            token=None if token_file is None else read_token(token_file),
            metrics_listen=metrics_listen,
            limits=ServiceLimits(max_message_bytes=max_message_bytes, max_value_bytes=max_value_bytes),
            data_limits=DataLimits(max_queue_tasks=max_queue_tasks),
        )
        asyncio.run(serve_until_stopped(serving))


@app.command()
def snapshot(dsn: Dsn) -> None:
    """Make a service take a snapshot now, and remove the part of its log that is no longer needed."""
    with _opened(dsn, "parallel_apply") as queue:
        take = getattr(queue, "snapshot", None)
        if take is None:
            raise QueueMisconfigured("only a service takes snapshots. Hint: Give its address, grpc://host:port.")
        typer.echo(take())


@app.command()
def check(
    data: Annotated[Path, typer.Argument(metavar="DIR", help="A data directory, even one that is served.")],
    as_json: AsJson = False,
) -> None:
    """Read a data directory as a start of the service would, changing nothing: what it holds, and what is damaged."""
    from airflow_parallel_apply.queue.memory import check_data

    with _errors():
        found = check_data(data)
    report: dict[str, Any] = {
        "tasks": len(found.tasks),
        "queues": len({task.queue for task in found.tasks.values()}),
        "snapshot": None if found.snapshot is None else found.snapshot.name,
        "changes_behind_it": found.change_count,
        "log_bytes": found.log_bytes,
        "torn": [f"{torn.path.name} from byte {torn.size_bytes}" for torn in found.torn],
        "damaged_snapshots": list(found.damaged_snapshots.values()),
    }
    if as_json:
        _print_json(report)
    else:
        for name, value in report.items():
            shown = "; ".join(value) if isinstance(value, list) else value
            typer.echo(f"{name.replace('_', ' ')}: {'none' if shown in (None, '') else shown}")
    if found.damaged_snapshots:
        raise typer.Exit(_REFUSED)


def main() -> None:
    """Entry point."""
    app(prog_name="python -m airflow_parallel_apply.queue")


@contextmanager
def _opened(dsn: str, schema: str) -> Iterator[Queue]:
    with _errors():
        queue = open_queue(dsn, schema=schema)
        try:
            yield queue
        finally:
            queue.close()


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except QueueUnavailable as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(_UNAVAILABLE) from error
    except (QueueError, ValueError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(_REFUSED) from error


def _show(columns: Sequence[str], rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    """A table of what fits for a person, everything in tab-separated lines with a header for a pipe."""
    if as_json:
        _print_json(rows)
    elif sys.stdout.isatty():
        Console().print(_table([name for name in columns if name not in _TOO_WIDE], rows))
    else:
        typer.echo("\t".join(columns))
        for row in rows:
            typer.echo("\t".join(_cell(row[name]) for name in columns))


def _table(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> Table:
    """One line a row: ids by their first digits, times to the second (UTC), no empty column, texts cut to fit."""
    columns = [name for name in columns if name == columns[0] or any(row[name] not in (None, "") for row in rows)]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        numeric = any(isinstance(row[name], int) for row in rows)
        # Wrapping, as rich understands it, is what lets a column shrink; the texts themselves do not wrap.
        table.add_column(name.replace("_", " "), justify="right" if numeric else "left", no_wrap=name not in _SQUEEZED)
    for row in rows:
        # As text: what looks like markup in a name or a value is none.
        table.add_row(*(Text(_glance(row[name]), no_wrap=True, overflow="ellipsis") for name in columns))
    return table


def _glance(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return str(value)[:8] if isinstance(value, UUID) else _cell(value)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, str | int | UUID):
        return str(value).replace("\t", " ").replace("\n", " ")
    return json.dumps(value, ensure_ascii=False)


def _print_json(document: Any) -> None:
    typer.echo(json.dumps(document, default=_plain, indent=2))


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


if __name__ == "__main__":
    main()
