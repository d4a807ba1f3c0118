"""Something is done while the product is at some place: one of its functions waits for it, in this process. Or the
product goes by while somebody's commit waits.
"""

from __future__ import annotations

import functools
import importlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

import psycopg

from tests.hunt.runs import PLACES

PACKAGE: Final = "airflow_parallel_apply"
_HEAD_START_SECONDS: Final = 0.3
"""How long the product waits for a thread; one that waits for the product's own locks goes on when these are gone."""
_LONGEST_SECONDS: Final = 60.0
_LASTING: Final = ThreadPoolExecutor(max_workers=1)
"""A server ends with the thread that started it, so no thread of a lane's may."""


_CONFIRMED_SECONDS: Final = 8.0
"""How long a commit waits for its standby at most: what it has locked may keep a run waiting."""


class Died(BaseException):
    """Leaves behind nearly what a process would that is killed there: its sessions end, its transactions with them."""


def found(place: str) -> tuple[Any, str]:
    """The module or class, and the name in it, of the place's function."""
    module, _, names = PLACES[place][0].partition(":")
    *owners, name = names.split(".")
    return functools.reduce(getattr, owners, importlib.import_module(f"{PACKAGE}.{module}")), name


@contextmanager
def arrived(place: str, call: int, do: Callable[[], None], *, is_beside: bool) -> Iterator[None]:
    """`do` is called at the call-th arrival. `is_beside`: in a thread, which the product waits for briefly only; what
    it has begun has ended behind the context. A place that nothing arrives at is the context's end.
    """
    (owner, name), when = found(place), PLACES[place][1]
    original = getattr(owner, name)
    lock, calls, ended = threading.Lock(), 0, threading.Event()

    def done() -> None:
        try:
            do()
        finally:
            ended.set()

    beside = threading.Thread(target=done, daemon=True)

    def strike() -> None:
        nonlocal calls
        with lock:
            calls += 1
            if calls != call:
                return
        if is_beside:
            beside.start()
            beside.join(_HEAD_START_SECONDS)
        else:
            _LASTING.submit(done).result()

    @functools.wraps(original)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        if when == "before":
            strike()
        result = original(*arguments, **named)
        if when == "after":
            strike()
        return result

    with mock.patch.object(owner, name, wrapped):
        yield
    if calls < call:
        do()
    else:
        # A thread of a lane's may have arrived there, and be at it still.
        ended.wait(_LONGEST_SECONDS)


@contextmanager
def unconfirmed(dsn: str, commit: Callable[[], None]) -> Iterator[None]:
    """Until the context ends, a standby is waited for by whatever `commit` commits with `synchronous_commit = on`."""
    committing = threading.Thread(target=commit, daemon=True)
    confirmed = threading.Timer(_CONFIRMED_SECONDS, _set_standbys, (dsn, ""))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ALTER DATABASE hunt SET synchronous_commit = local")
    _set_standbys(dsn, "nobody")
    try:
        committing.start()
        confirmed.start()
        _wait_until_one_waits(dsn, committing)
        yield
    finally:
        confirmed.cancel()
        _set_standbys(dsn, "")
        committing.join(_LONGEST_SECONDS)


def _set_standbys(dsn: str, names: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        connection.execute("SELECT pg_reload_conf()")
        while connection.execute("SHOW synchronous_standby_names").fetchone() != (names,):
            time.sleep(0.01)


def _wait_until_one_waits(dsn: str, committing: threading.Thread) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        while committing.is_alive() and connection.execute(waiting).fetchone() == (0,):
            time.sleep(0.01)
