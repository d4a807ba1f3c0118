"""`python -m airflow_parallel_apply.demo`: what `make demo` runs. Told by the variables DEMO_…, see `settings`."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final, NoReturn

import typer
from rich.console import Console

from airflow_parallel_apply.demo.airflow import USERNAME
from airflow_parallel_apply.demo.display import Display
from airflow_parallel_apply.demo.flow import DAG_ID, Stage, play, stage, sweep
from airflow_parallel_apply.demo.interrupts import Interrupted, signals_interrupt
from airflow_parallel_apply.demo.keep import in_background, only_one, stop_kept, wait_for_the_end
from airflow_parallel_apply.demo.report import print_report
from airflow_parallel_apply.demo.settings import DATABASE, LEDGER_CONNECTION, PIPELINE, DemoSettings
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.queue.model import QueueError

ROOT: Final = Path(__file__).resolve().parents[2]
_STOP_TIMEOUT: Final = timedelta(seconds=60)
_INTERRUPTED: Final = 130
_FILE_WIDTH: Final = 140

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def demo(context: typer.Context) -> None:
    """Replay a pgbench history from PostgreSQL to a target through Airflow and Spark, and compare both sides.

    Variables: DEMO_TARGET (postgres), DEMO_TRANSACTIONS (50000), DEMO_CHANNELS (4), DEMO_SCALE (1),
    DEMO_CONSISTENCY (channel), DEMO_EPOCH_PROTOCOL (auto), DEMO_KEEP=1 (leave the servers up).
    Exit code 0 only if the run is green and all tables are equal.
    """
    if context.invoked_subcommand is None:
        sys.exit(guarded(_demo))


@app.command()
def stop() -> None:
    """End a demo that DEMO_KEEP=1 left running, and what a killed one left behind."""
    sys.exit(guarded(_stop))


def guarded(run: Callable[[], int]) -> int:
    """An error of ours is one line; Ctrl-C ends quietly. Either way everything was cleaned up before we are here."""
    try:
        return run()
    except (ParallelApplyError, QueueError) as error:
        Console(stderr=True).print(f"error: {error}", markup=False, style="red", soft_wrap=True)
        return 1
    except (Interrupted, KeyboardInterrupt):
        Console(stderr=True).print("interrupted; everything was cleaned up")
        return _INTERRUPTED


def play_once(settings: DemoSettings) -> int:
    """The exit code of one demo, after which nothing of it runs any more."""
    with only_one(settings.directory), signals_interrupt(), stage(settings) as on:
        return _play(settings, on)


def _demo() -> int:
    # Of a package that the embedded PostgreSQL brings, about a directory that is not used here.
    warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
    settings = DemoSettings.from_environment(os.environ, root=ROOT)
    return in_background(lambda tell: _play_and_tell(settings, tell)) if settings.keep else play_once(settings)


def _stop() -> int:
    settings = DemoSettings.from_environment({}, root=ROOT)
    if not settings.directory.exists():
        return 0
    stopped = stop_kept(settings.directory, timeout=_STOP_TIMEOUT)
    with only_one(settings.directory):
        sweep(settings)
    if stopped:
        Console().print("The demo's servers are gone.")
    return 0


def _play(settings: DemoSettings, on: Stage) -> int:
    console = Console()
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    display = Display(console)
    outcome = play(settings, on, display)
    display.console.print()
    print_report(display.console, outcome)
    return 0 if outcome.good else 1


def _play_and_tell(settings: DemoSettings, tell: Callable[[int], None]) -> None:
    """In the child of DEMO_KEEP=1: `tell` lets the command end; the servers stay until somebody stops this process."""

    def whole() -> NoReturn:
        with only_one(settings.directory), signals_interrupt(), stage(settings) as on:
            code = _play(settings, on)
            _say_where(settings, on)
            tell(code)
            wait_for_the_end()

    tell(guarded(whole))


def _say_where(settings: DemoSettings, on: Stage) -> None:
    console = Console(highlight=False)
    console.print()
    console.print(f"Airflow stays up at [bold]{on.airflow.base_url}[/bold], user {USERNAME}, password ", end="")
    console.print(on.airflow.password, markup=False)
    console.print(f"Source: {on.source.uri(DATABASE)}")
    if on.target.is_ledger:
        console.print(f"Target: {on.beside.uri(DATABASE)}")
    else:
        console.print(f"Target: {on.target.url}")
        console.print(f"Its ledger: {on.beside.uri(DATABASE)}")
    fields = {"Pipeline": PIPELINE, "Log": settings.log_url}
    if not on.target.is_ledger:
        fields["Ledger connection"] = LEDGER_CONNECTION
    filled = ", ".join(f"{name}: {value}" for name, value in fields.items())
    console.print(f"To apply what you write at the source, trigger the DAG {DAG_ID} with {filled}", soft_wrap=True)
    console.print("To stop: [bold]make demo-stop[/bold]")


if __name__ == "__main__":
    app()
