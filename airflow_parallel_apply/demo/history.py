"""A real history at the source: what pgbench's TPC-B leaves in the write-ahead log, its initial load included."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.errors import Unavailable

CHANGES_PER_TRANSACTION: Final = 4
_CLIENTS: Final = 2
_PROGRESS: Final = re.compile(r"^progress: ([\d.]+) s, ([\d.]+) tps")


def create_tables(server: PostgresServer, database: str) -> None:
    """The four tables with their primary keys (pgbench_history has none), without rows."""
    server.run("pgbench", "--initialize", "--init-steps=dtp", "--quiet", database=database)


def load_tables(server: PostgresServer, database: str, *, scale: int) -> None:
    """The initial load: one transaction that truncates the tables and fills them, scale × 100,011 rows."""
    server.run("pgbench", "--initialize", "--init-steps=g", f"--scale={scale}", "--quiet", database=database)


def run_transactions(server: PostgresServer, database: str, count: int, *, on_progress: Callable[[int], None]) -> None:
    """Run `count` TPC-B transactions from two clients; tells how many are done about once a second."""
    clients = min(_CLIENTS, count)
    _pgbench(server, database, clients=clients, each=count // clients, on_progress=on_progress)
    if rest := count % clients:
        _pgbench(server, database, clients=1, each=rest, on_progress=lambda done: on_progress(count - rest + done))
    on_progress(count)


def _pgbench(
    server: PostgresServer, database: str, *, clients: int, each: int, on_progress: Callable[[int], None]
) -> None:
    command = [
        str(server.bin_path / "pgbench"), "--no-vacuum", f"--client={clients}", "--jobs=1",
        f"--transactions={each}", "--protocol=prepared", "--progress=1", server.uri(database),
    ]  # fmt: skip
    with _ended_with_us(command) as process:
        said: list[str] = []
        done, before = 0.0, 0.0
        for line in process.stderr or ():
            if found := _PROGRESS.match(line):
                at, rate = float(found[1]), float(found[2])
                done, before = done + rate * (at - before), at
                on_progress(min(round(done), clients * each))
            else:
                said.append(line.strip())
        if process.wait() != 0:
            raise Unavailable(f"pgbench ended with {process.returncode}: {' | '.join(said[-5:])}", op="demo")


@contextmanager
def _ended_with_us(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
