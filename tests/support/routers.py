"""A router over logs, in this process or in one of its own."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_parallel_apply.demo.ports import free_port
from airflow_parallel_apply.router.feeding.feedings import FeedingLimits, Feedings
from airflow_parallel_apply.router.service.logs import LogPaths
from airflow_parallel_apply.router.service.process import RouterProcess, RouterServing, serve
from tests.support.queue_service import until


@contextmanager
def served_logs(directory: Path, *, spill: Path | None = None, **options: Any) -> Iterator[str]:
    """Every log in a directory, served by threads of this process; the router's URL. `spill`: it holds rows for the
    store memory, too, and spills them there.
    """
    router = RouterProcess(
        RouterServing(logs=LogPaths(within=directory), **options),
        None if spill is None else lambda logs: Feedings(logs, FeedingLimits(), spill),
    )
    try:
        yield router.url
    finally:
        router.stop()


class RouterCommand:
    """`serve`, as a user starts it: at a port that stays its own while it is down."""

    def __init__(self, directory: Path, *arguments: str, listen: str = "") -> None:
        self._listen = listen or f"127.0.0.1:{free_port()}"
        self._command = [
            sys.executable, "-m", "airflow_parallel_apply.router", "serve", "--logs", str(directory),
            "--listen", self._listen, "--ready-file", str(directory.with_name("ready.json")), *arguments,
        ]  # fmt: skip
        self.ready_file = directory.with_name("ready.json")
        self.start()

    def start(self) -> None:
        """Start it, again where it was ended; returns once it serves."""
        self.ready_file.unlink(missing_ok=True)
        self.process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        until(lambda: self.ready_file.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()
        self.ready: dict[str, Any] = json.loads(self.ready_file.read_text())
        self.url = str(self.ready["url"])

    def end(self, number: int) -> tuple[int, str]:
        """Send it a signal; its exit code, and what it said."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=180)
        return self.process.returncode, errors


class ForkedRouter:
    """A router that a test kills again and again: forked from a process that has imported what takes longest, at a port
    that stays its own. It holds rows within `memory_bytes`, and spills.
    """

    def __init__(self, directory: Path, *, memory_bytes: int) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.support.step_process"])
        self._ready = directory.with_name("forked.json")
        listen = f"127.0.0.1:{free_port()}"
        self.url = f"grpc://{listen}"
        self._arguments = (directory, listen, self._ready, memory_bytes, dict(os.environ))
        self.start()

    def start(self) -> None:
        """Start it, again where it was killed; returns once it serves."""
        self._ready.unlink(missing_ok=True)
        self._process = self._context.Process(target=_serve, args=self._arguments)
        self._process.start()
        until(lambda: self._ready.exists() or not self._process.is_alive())
        assert self._process.is_alive(), "the router does not start"

    def kill(self) -> None:
        """`kill -9`, unless it is dead."""
        if self._process.is_alive():
            assert self._process.pid is not None
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()


def _serve(directory: Path, listen: str, ready: Path, memory_bytes: int, environment: dict[str, str]) -> None:
    # The process that forks has the environment of its own start.
    os.environ.clear()
    os.environ.update(environment)
    limits = FeedingLimits(memory_bytes=memory_bytes)
    serving = RouterServing(logs=LogPaths(within=directory), listen=listen, ready_file=ready)
    serve(serving, lambda logs: Feedings(logs, limits, directory.with_name("spill")))
