"""`python -m benchmarks tables`: what thousands of tables cost, step by step, at two numbers of tables.

No time of a clock on the wall: statements as the servers log them, the servers' and this process's processor seconds,
and how each grows from the first number of tables to the second. No Spark: a lane's rows go the same way without it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import psycopg
from rich.console import Console
from rich.table import Table

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.admin.status import read_status
from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import PipelineConfig, TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import TargetError
from benchmarks.world import SERVER_SETTINGS
from tests.support.rig import Rig

TABLES: Final = (1_000, 5_000)
CHANGED: Final = 50
"""Tables with a changed row in one of the steps."""

_DATABASE: Final = "bench"
_LOGGING: Final = {
    "log_min_duration_statement": "0",
    "log_checkpoints": "off",
    "log_line_prefix": "@@ ",
    "max_locks_per_transaction": "256",
    "autovacuum": "off",
}
_DURATION: Final = re.compile(r"duration: ([0-9.]+) ms  (?:statement|execute)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one step. Server seconds are processor time of sessions that ended in it, or of those that the step
    left.
    """

    step: str
    statements: int
    server_seconds: float
    client_seconds: float
    wall_seconds: float


def measure_tables(directory: Path, count: int, tell: Callable[[str], None]) -> list[Cost]:
    """All steps with `count` tables, with servers of their own."""
    with ExitStack() as stack:
        source, target = (
            stack.enter_context(PostgresServer(directory / side, settings={**SERVER_SETTINGS, **_LOGGING}))
            for side in ("source", "target")
        )
        for server in (source, target):
            server.create_database(_DATABASE)
        make_tables(source.dsn(_DATABASE), count)
        config = PipelineConfig(
            pipeline="bench",
            log_url=str(directory / "log"),
            channels=2,
            lanes=1,
            tables=TablePatterns(include=("app.*",)),
            create_tables=True,
            lease=timedelta(minutes=30),
        )
        rig = Rig(config=config, source_dsn=source.dsn(_DATABASE), target_dsn=target.dsn(_DATABASE))
        return [_measured(name, do, (source, target), tell) for name, do in _steps(rig, count)]


def _steps(rig: Rig, count: int) -> Sequence[tuple[str, Callable[[], object]]]:
    numbers = range(1, count, max(count // CHANGED, 1))

    def insert() -> None:
        rig.write(*(f"INSERT INTO app.t_{number} (id) VALUES (1)" for number in numbers))

    def update() -> None:
        rig.write(*(f"UPDATE app.t_{number} SET b = b + 1" for number in numbers))

    def equal() -> None:
        if not rig.comparison().equal:
            raise TargetError("source and target differ", op="bench")

    def check() -> None:
        found = check_pipeline(rig.config, rig.source, rig.target)
        if not found.is_good:
            raise TargetError(f"check found {found.findings[:3]}", op="bench")

    return (
        ("check, before the first run", check),
        ("prepare, with the copy of empty tables", rig.prepare),
        ("check", check),
        ("a run without work", rig.run),
        ("a run without work, again", rig.run),
        ("capture alone, nothing to capture", lambda: rig.capture("alone")),
        (f"(a row inserted into {CHANGED} tables)", insert),
        (f"a run with a new row in {CHANGED} tables", rig.run),
        (f"(a row updated in {CHANGED} tables)", update),
        (f"a run with an updated row in {CHANGED} tables", rig.run),
        ("status", lambda: read_status(rig.target, rig.config.pipeline, rig.config.log_url, rig.source)),
        ("compare", equal),
        (
            "recopy of one table",
            lambda: recopy_tables(rig.config, rig.source, rig.target, [("app", "t_1")], report=lambda _: None),
        ),
        ("a run after it", rig.run),
    )


def make_tables(dsn: str, count: int) -> None:
    """Keyed, of eight columns; one of ten partitioned with two partitions, one of five with a foreign key."""
    columns = (
        "id integer PRIMARY KEY, a text NOT NULL DEFAULT 0, b integer NOT NULL DEFAULT 0, c numeric(12, 2), "
        "d timestamptz DEFAULT now(), e boolean, f jsonb, g integer"
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA app")
        connection.execute(
            f"""
            DO $$ BEGIN
                FOR i IN 1..{count} LOOP
                    EXECUTE format('CREATE TABLE app.t_%s ({columns})', i)
                        || CASE WHEN i % 10 = 0 THEN ' PARTITION BY RANGE (id)' ELSE '' END;
                    IF i % 10 = 0 THEN
                        EXECUTE format('CREATE TABLE app.t_%1$s_0 PARTITION OF app.t_%1$s DEFAULT', i);
                        EXECUTE format('CREATE TABLE app.t_%1$s_1 PARTITION OF app.t_%1$s FOR VALUES FROM (0) TO (9)',
                            i);
                    ELSIF i % 5 = 1 AND i > 1 THEN
                        EXECUTE format('ALTER TABLE app.t_%s ADD FOREIGN KEY (g) REFERENCES app.t_%s', i, i - 5);
                    END IF;
                    IF i % 200 = 0 THEN COMMIT; END IF;
                END LOOP;
            END $$
            """
        )
        connection.execute("VACUUM ANALYZE")


def _measured(
    step: str, do: Callable[[], object], servers: Sequence[PostgresServer], tell: Callable[[str], None]
) -> Cost:
    places = [server.log.stat().st_size for server in servers]
    before = [_processor_seconds(server) for server in servers]
    client, wall = time.process_time(), time.monotonic()
    do()
    cost = Cost(
        step=step,
        client_seconds=time.process_time() - client,
        wall_seconds=time.monotonic() - wall,
        server_seconds=sum(_processor_seconds(server) for server in servers) - sum(before),
        statements=sum(
            len(_DURATION.findall(_from(server.log, place))) for server, place in zip(servers, places, strict=True)
        ),
    )
    tell(
        f"{step}: {cost.statements} statements, {cost.server_seconds:.2f} s of the servers, "
        f"{cost.client_seconds:.2f} s of the client, {cost.wall_seconds:.1f} s by the clock"
    )
    return cost


def _from(log: Path, place: int) -> str:
    with log.open("rb") as file:
        file.seek(place)
        return file.read().decode(errors="replace")


def _processor_seconds(server: PostgresServer) -> float:
    """Processor time of the postmaster, of its children that have ended, and of those that live."""
    processes = [server.pid, *map(int, Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split())]
    ticks = 0
    for process in processes:
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # utime, stime and, of the postmaster, what its children had that were waited for.
        ticks += sum(map(int, fields[11:15] if process == server.pid else fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def print_tables(console: Console, found: Mapping[int, Sequence[Cost]]) -> None:
    """A line for each step: each number of tables, then what the second takes for one of the first."""
    table = Table("step", *(f"{what}, {count:,}" for what in ("statements", "server s", "client s") for count in found))
    for costs in zip(*found.values(), strict=True):
        if not costs[0].step.startswith("("):
            table.add_row(
                costs[0].step,
                *(f"{cost.statements:,}" for cost in costs),
                *(f"{cost.server_seconds:.2f}" for cost in costs),
                *(f"{cost.client_seconds:.2f}" for cost in costs),
            )
    console.print(table)
