"""The contenders: our backends in this process, others in an environment of their own; all on one disk.

All that finish a task wait until the disk has it: `fsync` on, `synchronous_commit` on, `appendfsync always`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.queue import open_queue
from airflow_parallel_apply.queue.memory import DataDirectory, MemoryQueue
from airflow_parallel_apply.queue.postgres import PostgresQueue, migrate
from benchmarks.queues.peers import Peers
from benchmarks.queues.work import Spent, Work, run

MEMORY: Final = "memory, in process"
SERVICE: Final = "service"
POSTGRES: Final = "PostgreSQL"
SINGLE: Final = "single"
BATCHED: Final = "batched"

SERVER_SETTINGS: Final[Mapping[str, str]] = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "wal_level": "replica",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
}
"""Settings of the server that all queues in PostgreSQL share."""

_READY_SECONDS: Final = 300.0
_numbers: Final = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One line of the table."""

    name: str
    measure: Callable[[Work], Spent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The directory and the servers that contenders use."""

    directory: Path
    server: PostgresServer
    peers: Peers

    def contenders(self) -> list[Contender]:
        """In the order of the table."""
        ours: dict[str, Callable[[Work], Spent]] = {
            MEMORY: self._memory,
            SERVICE: self._service,
            POSTGRES: self._postgres,
        }
        found = [
            Contender(name=f"{name}, {how}", measure=measure if how == BATCHED else _single(measure))
            for name, measure in ours.items()
            for how in (SINGLE, BATCHED)
        ]
        return [*found, *(Contender(name=name, measure=self._peer(name)) for name in self.peers.names)]

    def _memory(self, work: Work) -> Spent:
        with closing(DataDirectory(self._folder("memory"))) as data, closing(MemoryQueue(data.engine)) as queue:
            return run(queue, work)

    def _service(self, work: Work) -> Spent:
        with serving(self._folder("service")) as served, closing(open_queue(served.url)) as queue:
            return run(queue, work)

    def _postgres(self, work: Work) -> Spent:
        dsn = self._database()
        migrate(dsn)
        with closing(PostgresQueue(dsn)) as queue:
            return run(queue, work)

    def _peer(self, name: str) -> Callable[[Work], Spent]:
        def measure(work: Work) -> Spent:
            return self.peers.run(name, work, dsn=self._database(), directory=self._folder(name))

        return measure

    def _folder(self, name: str) -> Path:
        folder = self.directory / f"{name.split(maxsplit=1)[0].strip(',')}-{next(_numbers)}"
        folder.mkdir()
        return folder

    def _database(self) -> str:
        return self.server.create_database(f"queue_{next(_numbers)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A service that runs."""

    url: str
    pid: int


@contextmanager
def serving(data: Path) -> Iterator[Served]:
    """The service as a process of its own."""
    ready_file = data.with_name(f"{data.name}.ready")
    # Left behind by one that was killed.
    ready_file.unlink(missing_ok=True)
    with data.with_name(f"{data.name}.log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "airflow_parallel_apply.queue", "serve", "--data", str(data),
                "--ready-file", str(ready_file),
            ],
            stderr=log,
        )  # fmt: skip
    try:
        ready = _wait_ready(ready_file, process)
        yield Served(url=str(ready["url"]), pid=process.pid)
    finally:
        process.terminate()
        process.wait()


def _wait_ready(path: Path, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    deadline = monotonic() + _READY_SECONDS
    while not path.exists():
        if process.poll() is not None or monotonic() > deadline:
            raise Unavailable("the queue's service did not start", op="bench", hint=f"See {path.with_suffix('.log')}.")
        sleep(0.01)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _single(measure: Callable[[Work], Spent]) -> Callable[[Work], Spent]:
    return lambda work: measure(replace(work, batch=1))
