"""`python -m benchmarks` (`make bench`): ratios against PostgreSQL's own. `… --help` lists the others."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.router.memory_pool import choose_memory_pool

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def apply(
    context: typer.Context,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every measurement here.")] = None,
) -> None:
    """One pgbench history, applied by PostgreSQL's own replication and by ours. See BENCH_… in docs/benchmarks.md."""
    if context.invoked_subcommand is not None:
        return
    from benchmarks.report import print_result, to_json
    from benchmarks.settings import BenchSettings
    from benchmarks.suite import run_suite

    console = Console()
    settings = BenchSettings.from_environment(os.environ)
    with tempfile.TemporaryDirectory(prefix="parallel-apply-bench-", ignore_cleanup_errors=True) as directory:
        result = run_suite(Path(directory), settings, lambda line: console.print(f"… {line}", highlight=False))
    print_result(console, result)
    if json_file is not None:
        json_file.write_text(to_json(result) + "\n")


@app.command()
def copy() -> None:
    """The initial copy against `pg_dump | psql` and pgcopydb. BENCH_SCALE: 100,000 rows each; BENCH_REPEATS."""
    from benchmarks.copying import copy_lines, measure_copies
    from benchmarks.settings import BenchSettings

    console = Console()
    settings = BenchSettings.from_environment(os.environ)
    with tempfile.TemporaryDirectory(prefix="parallel-apply-bench-", ignore_cleanup_errors=True) as directory:
        result = measure_copies(Path(directory), settings, lambda line: console.print(f"… {line}", highlight=False))
    for line in copy_lines(result):
        console.print(line, highlight=False)


@app.command()
def workloads(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="tpcb tpcb_long uniform one_channel insert insert_long hot10 thousand thousand_long large; or all."
        ),
    ] = None,
    ways: Annotated[
        str, typer.Option(help="Comma-separated: native channel leader_merge two_phase auto capture near far.")
    ] = "native,channel,leader_merge,two_phase,capture,near,far",
    results: Annotated[
        Path | None, typer.Option(help="Keep results in this file, and leave out the histories that it has.")
    ] = None,
) -> None:
    """Histories of many shapes, a far target, and memory. BENCH_WORKLOAD_CHANGES, BENCH_REPEATS."""
    from benchmarks.histories import histories
    from benchmarks.record import add_line, print_summary, print_workload, read_lines
    from benchmarks.settings import BenchSettings
    from benchmarks.workloads import chosen_ways, run_workloads

    console = Console(width=160)
    settings = BenchSettings.from_environment(os.environ)
    chosen = chosen_ways(ways)
    found = [] if results is None else read_lines(results)
    wanted = names or list(histories(settings.workload_changes))
    left = [name for name in wanted if name not in {one.name for one in found}]
    with tempfile.TemporaryDirectory(prefix="parallel-apply-bench-", ignore_cleanup_errors=True) as directory:
        tell = partial(console.print, highlight=False)
        for one in run_workloads(Path(directory), settings, left, chosen, lambda line: tell(f"… {line}")):
            print_workload(console, one)
            found.append(one)
            if results is not None:
                add_line(results, one)
    print_summary(console, found)


@app.command()
def tables(
    counts: Annotated[list[int] | None, typer.Argument(help="Numbers of tables; 1000 5000 by default.")] = None,
) -> None:
    """Each step of a pipeline with thousands of tables: statements, processor seconds of the servers and of ours."""
    from benchmarks.tables import TABLES, measure_tables, print_tables

    console = Console()
    found = {}
    for count in counts or TABLES:
        with tempfile.TemporaryDirectory(prefix="parallel-apply-bench-", ignore_cleanup_errors=True) as directory:
            tell = partial(console.print, highlight=False)
            tell(f"… {count:,} tables")
            found[count] = measure_tables(Path(directory), count, tell)
    print_tables(console, found)


@app.command()
def lake(rows: int = 200_000, changes: int = 300_000, batch: int = 30_000, repeats: int = 1) -> None:
    """Merging net changes into a Delta table, against delta-rs' own merge of raw changes in batches."""
    from benchmarks.lake import measure_lake

    tell = partial(Console().print, highlight=False)
    with tempfile.TemporaryDirectory(prefix="parallel-apply-bench-", ignore_cleanup_errors=True) as directory:
        found = measure_lake(
            Path(directory),
            rows=rows,
            changes=changes,
            batch=batch,
            repeats=repeats,
            tell=lambda line: tell(f"… {line}"),
        )
    for line in found:
        tell(f"{line.way}: {line.cpu_seconds / found[0].cpu_seconds:.1f} times the processor seconds of net changes")


@app.command()
def stores(
    parts: Annotated[str, typer.Option(help="Comma-separated: feeding reading runs.")] = "feeding,reading,runs",
) -> None:
    """Feeding channel_log, reading through each store into Spark, whole runs. BENCH_TRANSACTIONS, _WORKLOAD_CHANGES."""
    from benchmarks.by_store import measure_by_store, print_by_store
    from benchmarks.reading import measure_reading, print_reading
    from benchmarks.settings import BenchSettings
    from benchmarks.stores import measure_stores, print_stores

    console = Console(width=200)
    settings = BenchSettings.from_environment(os.environ)
    with tempfile.TemporaryDirectory(prefix="parallel-apply-bench-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        if "feeding" in parts:
            print_stores(console, measure_stores(directory, settings.transactions, repeats=settings.repeats))
        if "reading" in parts:
            print_reading(console, measure_reading(directory, settings.transactions, repeats=settings.repeats))
        if "runs" in parts:
            tell = partial(console.print, highlight=False)
            print_by_store(console, measure_by_store(directory, settings, lambda line: tell(f"… {line}")))


@app.command()
def mariadb(
    names: Annotated[list[str] | None, typer.Argument(help="Histories of `workloads`; uniform by default.")] = None,
    times: Annotated[
        str, typer.Option(help="Sizes, comma-separated: so many times BENCH_WORKLOAD_CHANGES. The first, in all ways.")
    ] = "2,8",
) -> None:
    """Catching up into MariaDB: its own replica with 0 to 8 threads, and ours. BENCH_WORKLOAD_CHANGES, _REPEATS."""
    from benchmarks.mariadb import measure_catch_ups, print_catch_ups
    from benchmarks.settings import BenchSettings

    console = Console(width=160)
    settings = BenchSettings.from_environment(os.environ)
    with tempfile.TemporaryDirectory(prefix="parallel-apply-bench-", ignore_cleanup_errors=True) as directory:
        for found in measure_catch_ups(
            Path(directory),
            settings,
            names or ["uniform"],
            [int(time) for time in times.split(",")],
            lambda line: console.print(f"… {line}", highlight=False),
        ):
            print_catch_ups(console, found)


@app.command()
def kafka() -> None:
    """Sending a history into topics: ours with 1 and 2 channels, and a plain producer. BENCH_WORKLOAD_CHANGES, …"""
    from benchmarks.kafka import measure_kafka, print_kafka
    from benchmarks.settings import BenchSettings

    console = Console(width=160)
    settings = BenchSettings.from_environment(os.environ)
    with tempfile.TemporaryDirectory(prefix="parallel-apply-bench-", ignore_cleanup_errors=True) as directory:
        found = measure_kafka(Path(directory), settings, lambda line: console.print(f"… {line}", highlight=False))
    print_kafka(console, found)


@app.command()
def encode(
    rows: Annotated[int, typer.Option(help="Rows of each table.")] = 1_000_000,
    transactions: Annotated[int, typer.Option(help="Of four changes each, of the log that is exported.")] = 150_000,
    spark: Annotated[bool, typer.Option(help="Measure Spark's own writers, too.")] = False,
) -> None:
    """Each format of an export with 1 and 2 workers, against fastavro, orjson, Spark. BENCH_REPEATS."""
    from benchmarks.encoding import measure_encoding, measure_spark
    from benchmarks.encoding_report import print_encoding
    from benchmarks.exporting import measure_exports, print_exports
    from benchmarks.settings import BenchSettings

    console = Console(width=200)
    repeats = BenchSettings.from_environment(os.environ).repeats
    tell = partial(console.print, highlight=False)
    print_encoding(console, measure_encoding(rows, repeats=repeats, tell=tell))
    with tempfile.TemporaryDirectory(prefix="parallel-apply-bench-", ignore_cleanup_errors=True) as directory:
        print_exports(console, measure_exports(Path(directory), transactions, repeats=repeats), transactions)
        if spark:
            for line in measure_spark(Path(directory), rows, repeats=repeats):
                tell(line)


@app.command()
def flight() -> None:
    """A router's streams to 2, 4, 8 and 64 channels, and Spark's price of its data source. BENCH_TRANSACTIONS, …"""
    from benchmarks.flight import measure_flight, print_flight
    from benchmarks.settings import BenchSettings

    console = Console(width=200)
    settings = BenchSettings.from_environment(os.environ)
    tell = partial(console.print, highlight=False)
    with tempfile.TemporaryDirectory(prefix="parallel-apply-bench-") as directory:
        found = measure_flight(
            Path(directory), settings.transactions, repeats=settings.repeats, tell=lambda line: tell(f"… {line}")
        )
    print_flight(console, found)


@app.command()
def backlog(transactions: Annotated[int, typer.Option(help="Of four changes each.")] = 2_500_000) -> None:
    """A router's memory with ten million changes, while one of two channels is nine million behind."""
    from benchmarks.backlog import measure_backlog, print_backlog

    with tempfile.TemporaryDirectory(prefix="parallel-apply-bench-") as directory:
        found = measure_backlog(Path(directory), transactions)
    print_backlog(Console(width=200), found)


@app.command()
def router() -> None:
    """The router's engine with 2 to 64 outputs against pyarrow alone, queues and Spark's repartition. BENCH_REPEATS."""
    choose_memory_pool(os.environ)
    # Late: Arrow comes with it.
    from benchmarks.routing import measure_routing, measure_spills, print_routing
    from benchmarks.settings import BenchSettings

    repeats = BenchSettings.from_environment(os.environ).repeats
    with tempfile.TemporaryDirectory(prefix="parallel-apply-bench-") as directory:
        row_bytes, lines = measure_routing(Path(directory), repeats=repeats)
        spills = measure_spills(Path(directory), repeats=repeats)
    print_routing(Console(width=200), row_bytes, lines, spills)


@app.command()
def queue() -> None:
    """Our queue's backends against procrastinate, pgqueuer and Redis streams. BENCH_QUEUE_TASKS, _WORKERS, _BATCH, …"""
    from benchmarks.queues.settings import QueueBenchSettings
    from benchmarks.queues.throughput import measure, print_lines

    console = Console()
    settings = QueueBenchSettings.from_environment(os.environ)
    with tempfile.TemporaryDirectory(prefix="parallel-apply-bench-", ignore_cleanup_errors=True) as directory:
        lines = measure(Path(directory), settings, lambda line: console.print(f"… {line}", highlight=False))
    print_lines(console, settings, lines)


@app.command()
def queue_latency() -> None:
    """A queue of a million tasks: latencies, watched and not; memory; recovery. BENCH_QUEUE_LARGE_TASKS, …"""
    from benchmarks.queues.latency import measure, print_large
    from benchmarks.queues.settings import QueueBenchSettings

    console = Console()
    settings = QueueBenchSettings.from_environment(os.environ)
    with tempfile.TemporaryDirectory(prefix="parallel-apply-bench-", ignore_cleanup_errors=True) as directory:
        found = measure(Path(directory), settings, lambda line: console.print(f"… {line}", highlight=False))
    print_large(console, settings, found)


@app.command()
def parse() -> None:
    """Measure what parsing the DAG `parallel_apply` costs over an empty DAG."""
    from benchmarks.parse import REPEATS, measure_parse

    dag = Path(__file__).parent.parent / "dags" / "parallel_apply.py"
    with tempfile.TemporaryDirectory(prefix="parallel-apply-bench-") as directory:
        found = measure_parse(dag, Path(directory))
    console = Console()
    for what, seconds in (("an empty DAG", found.empty_seconds), ("dags/parallel_apply.py", found.dag_seconds)):
        console.print(f"{what}: {seconds:.3f} s (median of {REPEATS}, imports of Airflow included)", highlight=False)
    console.print(f"the difference: {found.dag_seconds - found.empty_seconds:.3f} s", highlight=False)
    console.print(f"heavy imports: {', '.join(found.heavy) or 'none'}", highlight=False)


def main() -> None:
    """With errors in one line."""
    try:
        app()
    except ParallelApplyError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
