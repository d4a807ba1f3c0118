"""`python -m benchmarks copy`: the initial copy against `pg_dump | psql` and pgcopydb, on one database, in turns.

All three make tables, rows, keys and indexes at an empty target; ours makes slot, log and record as well. Ours is
measured twice, with a Spark server that is up: from the call, and with the session's Python workers started before.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final

import psycopg

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.compare import compare
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, TablePatterns
from airflow_parallel_apply.pipeline.copy.protocol import Copying
from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.spark.copier import spark_copier
from airflow_parallel_apply.spark.server import connect_server
from benchmarks.settings import BenchSettings
from benchmarks.world import SERVER_SETTINGS

OURS: Final = "ours"
OURS_WARM: Final = "ours, Python workers started"
DUMP: Final = "pg_dump | psql"
PGCOPYDB: Final = "pgcopydb copy-db"

_DATABASE: Final = "bench"


@dataclass(slots=True)
class CopyResult:
    """Seconds by what was measured, in the order of the measurements, and the machine's load before each."""

    rows: int
    seconds: dict[str, list[float]] = field(default_factory=dict)
    loads: list[float] = field(default_factory=list)

    def median(self, what: str) -> float:
        """Seconds."""
        return statistics.median(self.seconds[what])


def measure_copies(directory: Path, settings: BenchSettings, tell: Callable[[str], None]) -> CopyResult:
    """Fill a source with pgbench's tables, copy it `repeats` times each way."""
    with ExitStack() as stack:
        source, target = (
            stack.enter_context(PostgresServer(directory / side, settings=SERVER_SETTINGS))
            for side in ("source", "target")
        )
        source.create_database(_DATABASE)
        source.run("pgbench", "-i", "-q", "-s", str(settings.scale), database=_DATABASE)
        stack.enter_context(connect_server())
        ways: dict[str, Callable[[str], float]] = {
            OURS: lambda name: _ours(directory, source, target, name, is_warm=False),
            DUMP: lambda name: _timed(lambda: _dump(source, target, name)),
            OURS_WARM: lambda name: _ours(directory, source, target, name, is_warm=True),
        }
        if shutil.which("pgcopydb") is None:
            tell("pgcopydb is not installed here (Debian: apt-get install pgcopydb), so there is no ratio to it")
        else:
            ways[PGCOPYDB] = lambda name: _timed(lambda: _pgcopydb(directory, source, target, name))
        result = CopyResult(rows=settings.scale * 100_011)
        for number in range(settings.repeats):
            for position, (what, way) in enumerate(ways.items()):
                name = f"copy_{number}_{position}"
                target.create_database(name)
                with psycopg.connect(target.dsn(), autocommit=True) as connection:
                    connection.execute("CHECKPOINT")
                result.loads.append(os.getloadavg()[0])
                result.seconds.setdefault(what, []).append(way(name))
                if number == 0:
                    _require_equal(source, target, name)
                tell(f"{what}: {result.seconds[what][-1]:.1f} s, load {result.loads[-1]:.1f}")
        return result


def copy_lines(result: CopyResult) -> list[str]:
    """For a terminal: seconds, rows a second, and how many times as fast as each peer ours is."""
    peers = [what for what in (DUMP, PGCOPYDB) if what in result.seconds]
    lines = []
    for what in (OURS, OURS_WARM, *peers):
        seconds = result.median(what)
        ratios = ", ".join(f"{result.median(peer) / seconds:.2f} x {peer}" for peer in peers)
        all_seconds = " ".join(f"{one:.1f}" for one in result.seconds[what])
        lines.append(f"{what}: {seconds:.1f} s ({all_seconds}), {result.rows / seconds:,.0f} rows/s, {ratios}")
    lines.append(f"load average before each: {' '.join(f'{load:.1f}' for load in result.loads)}")
    return lines


def _ours(directory: Path, source: PostgresServer, target: PostgresServer, name: str, *, is_warm: bool) -> float:
    ends = Endpoint(conn_id="source", url=source.dsn(_DATABASE)), Endpoint(conn_id="target", url=target.dsn(name))
    config = PipelineConfig(pipeline=name, log_url=str(directory / f"log_{name}"), create_tables=True)
    with spark_copier(None, *ends) as copier:
        if is_warm:
            copier.warm_up()
        copying = Copying(copier=copier, report=lambda progress: None, cancelled=lambda: False)  # noqa: ARG005
        seconds = _timed(lambda: _prepare(config, *ends, copying))
    with psycopg.connect(ends[0].url, autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", [f"parallel_apply_{name}"])
    return seconds


def _prepare(config: PipelineConfig, source: Endpoint, target: Endpoint, copying: Copying) -> None:
    run.prepare(config, source, target, copying=copying)


def _dump(source: PostgresServer, target: PostgresServer, name: str) -> None:
    dump = subprocess.Popen([str(source.bin_path / "pg_dump"), "-d", source.dsn(_DATABASE)], stdout=subprocess.PIPE)
    subprocess.run(
        [str(target.bin_path / "psql"), "-qX", "-o", os.devnull, target.dsn(name)], stdin=dump.stdout, check=True
    )
    if dump.wait() != 0:
        raise TargetError("pg_dump failed", op="bench")


def _pgcopydb(directory: Path, source: PostgresServer, target: PostgresServer, name: str) -> None:
    command = ["pgcopydb", "copy-db", "--source", source.uri(_DATABASE), "--target", target.uri(name)]
    command += ["--dir", str(directory / f"pgcopydb_{name}"), "--no-owner", "--no-acl"]
    path = f"{source.bin_path}:{os.environ['PATH']}"
    done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TargetError(f"pgcopydb failed: {done.stderr[-500:]}", op="bench")


def _timed(work: Callable[[], None]) -> float:
    began = monotonic()
    work()
    return monotonic() - began


def _require_equal(source: PostgresServer, target: PostgresServer, name: str) -> None:
    """A copy of something that did not arrive is none."""
    ends = Endpoint(conn_id="source", url=source.dsn(_DATABASE)), Endpoint(conn_id="target", url=target.dsn(name))
    if not compare(*ends, TablePatterns(include=("public.pgbench_*",))).equal:
        raise TargetError("source and target differ", op="bench")
