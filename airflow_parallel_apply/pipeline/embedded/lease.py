"""Leases on an embedded server: started by whoever needs it first, or joined where it runs already."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from airflow_parallel_apply.pipeline.embedded.layout import HostLayout
from airflow_parallel_apply.pipeline.errors import Unavailable

_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """How a server is started. `name`: for people. `module`: its supervisor, run with the layout's directory, the
    inherited lock and `arguments`. `before`: called before it starts. `environment`: its own; None: its starter's.
    """

    name: str
    op: str
    layout: HostLayout
    module: str
    arguments: Sequence[str]
    start_timeout: timedelta
    before: Callable[[], None] = lambda: None
    environment: Mapping[str, str] | None = None


@contextmanager
def hold_server(server: Embedded) -> Iterator[dict[str, Any]]:
    """Hold a lease, the server started here if nobody has; what it says of itself. Errors: `Unavailable` with the log's
    tail when it does not start.
    """
    deadline = time.monotonic() + server.start_timeout.total_seconds()
    with server.layout.lease.open("ab") as lease:
        _lock_shared(lease.fileno(), deadline, server)
        os.utime(lease.fileno())
        try:
            yield _running(server, deadline)
        finally:
            os.utime(lease.fileno())


@contextmanager
def join_server(layout: HostLayout) -> Iterator[dict[str, Any] | None]:
    """Hold a lease on a server that runs; None where none does, or it is about to end."""
    with layout.lease.open("ab") as lease:
        try:
            fcntl.flock(lease.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        values = layout.read_values()
        if values is None or not is_supervised(layout):
            yield None
            return
        os.utime(lease.fileno())
        try:
            yield values
        finally:
            os.utime(lease.fileno())


def stop_server(layout: HostLayout, *, name: str, op: str, timeout: timedelta) -> bool:
    """Stop a server now, whoever uses it. False when none was running. `Unavailable` if it does not end."""
    values = layout.read_values()
    if values is None or not is_supervised(layout):
        return False
    os.kill(int(values["supervisor_pid"]), signal.SIGTERM)
    deadline = time.monotonic() + timeout.total_seconds()
    while is_supervised(layout):
        if time.monotonic() > deadline:
            raise Unavailable(f"{name} does not stop", op=op, hint=f"See {layout.log}.")
        time.sleep(_POLL_SECONDS)
    return True


def is_supervised(layout: HostLayout) -> bool:
    """True while a supervisor lives."""
    lock = os.open(layout.supervisor, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return not _try_lock(lock)
    finally:
        os.close(lock)


def is_idle(lease: int, idle_seconds: float) -> bool:
    """For a supervisor, with the lease file open: True if nobody holds the lease or has touched it within the idle
    time; the supervisor then holds it from here on.
    """
    try:
        fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.utime(lease)
        return False
    if time.time() - os.fstat(lease).st_mtime >= idle_seconds:
        return True
    fcntl.flock(lease, fcntl.LOCK_UN)
    return False


def _running(server: Embedded, deadline: float) -> dict[str, Any]:
    started, layout = False, server.layout
    while True:
        lock = os.open(layout.supervisor, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            free = _try_lock(lock)
            if free and started:
                raise Unavailable(
                    f"{server.name} ended while it started: {layout.log_tail()}",
                    op=server.op,
                    hint=f"See {layout.log}.",
                )
            if free:
                layout.state.unlink(missing_ok=True)
                _launch(server, lock)
                started = True
            elif (values := layout.read_values()) is not None:
                return values
        finally:
            os.close(lock)
        if time.monotonic() > deadline:
            raise Unavailable(
                f"{server.name} did not start in {server.start_timeout}: {layout.log_tail()}",
                op=server.op,
                hint=f"See {layout.log}.",
            )
        time.sleep(_POLL_SECONDS)


def _launch(server: Embedded, lock: int) -> None:
    """Start a supervisor that nobody has to wait for; it inherits the lock. Its parent ends at once."""
    layout = server.layout
    layout.log.unlink(missing_ok=True)
    server.before()
    layout.output.unlink(missing_ok=True)
    with layout.output.open("ab") as output:
        subprocess.run(
            [sys.executable, "-m", server.module, str(layout.directory), str(lock), *server.arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=layout.directory,
            env=server.environment,
            pass_fds=(lock,),
            start_new_session=True,
            check=False,
        )


def _lock_shared(descriptor: int, deadline: float, server: Embedded) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{server.name} is stopping, and does not end", op=server.op, hint=f"See {server.layout.log}."
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
