"""One demo at a time in a checkout, and with DEMO_KEEP=1 one that goes on after its command has ended.

The servers live as long as the process that started them, so keeping them means keeping that process: the command
forks, its child plays the demo and stays. A lock file, held by whoever plays, says whether one is there: the kernel's
word, which no stale process id can imitate. ::

    command ──fork──▶ child: play ──(tells the exit code)──▶ wait for SIGTERM ──▶ clean up
       └────────────── waits for the exit code ──▶ ends with it
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from airflow_parallel_apply.pipeline.errors import ConfigurationError, Unavailable

_POLL_SECONDS: Final = 0.1

_PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Hold the lock of a demo's directory. Errors: `ConfigurationError` when another demo runs there."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"a demo is running in {directory}", op="demo", hint="End it with `make demo-stop`."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        try:
            yield
        finally:
            # It may be another process's by the time that the next demo holds the lock.
            lock.truncate(0)


def stop_kept(directory: Path, *, timeout: timedelta) -> bool:
    """End the demo that holds the lock, and wait until it has cleaned up. False when there is none."""
    deadline = time.monotonic() + timeout.total_seconds()
    was_signalled = False
    while True:
        try:
            with only_one(directory):
                return was_signalled
        except ConfigurationError:
            # It may have ended by itself since then, or have begun just now, without an id in its lock yet.
            if not was_signalled:
                with suppress(ProcessLookupError, ValueError):
                    os.kill(int((directory / "lock").read_text()), signal.SIGTERM)
                    was_signalled = True
        if time.monotonic() > deadline:
            raise Unavailable(f"the demo in {directory} does not end", op="demo")
        time.sleep(_POLL_SECONDS)


def in_background(play: Callable[[Callable[[int], None]], None]) -> int:
    """Run `play` in a child that may outlive this process; return as soon as `play` calls its argument.

    Returns the number that it was called with, or 1 when the child ended without it. Signals go on to the child.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    # Until they are passed on, signals wait: one that ended only this process would leave the demo running.
    blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
        os.close(reading)
        _be_the_child(play, writing)
    os.close(writing)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        os.kill(child, number)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
    with os.fdopen(reading, "rb") as pipe:
        message = pipe.read()
    if message:
        return message[0]
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) or 1


def wait_for_the_end() -> NoReturn:
    """Let go of the terminal and wait for the signal that interrupts."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    while True:
        signal.pause()


def _be_the_child(play: Callable[[Callable[[int], None]], None], writing: int) -> NoReturn:
    os.setsid()
    code: int | None = None

    def tell(number: int) -> None:
        nonlocal code
        if code is None:
            code = number
            os.write(writing, bytes([number]))
            os.close(writing)

    try:
        play(tell)
    finally:
        sys.stdout.flush()
        os._exit(1 if code is None else code)
