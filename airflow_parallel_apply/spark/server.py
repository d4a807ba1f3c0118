"""The embedded Spark: one Spark Connect server for a user of a host, there while somebody uses it.

::

    connect_server ──shared lock──▶ lease ◀──exclusive lock, for a moment, "is anybody there?"── supervisor ──▶ JVM
         └───exclusive lock, handed down to the supervisor that it starts──▶ supervisor

Every fact is a lock that the kernel gives back at any death, kill -9 included; the state file is only an address.

- A supervisor lives as long as the lock on `supervisor` is held. Whoever gets that lock starts one and hands the lock
  down, so there are never two.
- The supervisor stops when it has had the lease exclusively for the idle time, and keeps it while it stops: a client
  that comes then waits, and starts the next one.
- The JVM dies with its supervisor (the kernel sees to it), Spark's Python workers with the JVM (end of their input).
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.spark.java import find_java
from airflow_parallel_apply.spark.layout import Layout, ServerSettings, ServerState, server_layout

_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLease:
    """The right to a running server. `url` carries a secret: never log it."""

    state: ServerState

    @property
    def url(self) -> str:
        return self.state.url

    @property
    def ui_url(self) -> str:
        """Spark's own pages, on loopback."""
        return self.state.ui_url


@contextmanager
def connect_server(*, settings: ServerSettings | None = None, directory: Path | None = None) -> Iterator[ServerLease]:
    """Hold a lease on the embedded server, started here if nobody has. The settings of whoever starts it count.

    Errors: `ConfigurationError` without a usable Java, `Unavailable` with the log's tail when it does not start.
    """
    chosen = settings or ServerSettings.from_environment()
    layout = server_layout(directory)
    deadline = time.monotonic() + chosen.start_timeout.total_seconds()
    with layout.lease.open("ab") as lease:
        _lock_shared(lease.fileno(), deadline, layout)
        os.utime(lease.fileno())
        try:
            yield ServerLease(state=_running(layout, chosen, deadline))
        finally:
            os.utime(lease.fileno())


def stop_server(*, directory: Path | None = None, timeout: timedelta = timedelta(seconds=20)) -> bool:
    """Stop this user's server now, whoever uses it. False when none was running. `Unavailable` if it does not end."""
    layout = server_layout(directory)
    state = layout.read_state()
    if state is None or not _supervised(layout):
        return False
    os.kill(state.supervisor_pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout.total_seconds()
    while _supervised(layout):
        if time.monotonic() > deadline:
            raise Unavailable("the embedded Spark server does not stop", op="spark", hint=f"See {layout.log}.")
        time.sleep(_POLL_SECONDS)
    return True


def _running(layout: Layout, settings: ServerSettings, deadline: float) -> ServerState:
    started = False
    while True:
        lock = os.open(layout.supervisor, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            free = _try_lock(lock)
            if free and started:
                raise Unavailable(
                    f"the embedded Spark server ended while it started: {layout.log_tail()}",
                    op="spark",
                    hint=f"See {layout.log}.",
                )
            if free:
                layout.state.unlink(missing_ok=True)
                _launch(layout, settings, lock)
                started = True
            elif (state := layout.read_state()) is not None:
                return state
        finally:
            os.close(lock)
        if time.monotonic() > deadline:
            raise Unavailable(
                f"the embedded Spark server did not start in {settings.start_timeout}: {layout.log_tail()}",
                op="spark",
                hint=f"See {layout.log}.",
            )
        time.sleep(_POLL_SECONDS)


def _launch(layout: Layout, settings: ServerSettings, lock: int) -> None:
    """Start a supervisor that nobody has to wait for; it inherits the lock. Its parent ends at once."""
    find_java()
    layout.log.unlink(missing_ok=True)
    layout.write_configuration(settings)
    command = [
        sys.executable, "-m", "airflow_parallel_apply.spark.supervisor",
        str(layout.directory), str(lock), str(settings.idle.total_seconds()),
    ]  # fmt: skip
    layout.output.unlink(missing_ok=True)
    with layout.output.open("ab") as output:
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=layout.directory,
            pass_fds=(lock,),
            start_new_session=True,
            check=False,
        )


def _lock_shared(descriptor: int, deadline: float, layout: Layout) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Unavailable(
                    "the embedded Spark server is stopping, and does not end", op="spark", hint=f"See {layout.log}."
                ) from None
            time.sleep(_POLL_SECONDS)
        else:
            return


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _supervised(layout: Layout) -> bool:
    lock = os.open(layout.supervisor, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return not _try_lock(lock)
    finally:
        os.close(lock)
