"""The embedded router: one for a user of a host, there while somebody uses it. `pipeline.embedded` says how it begins
and ends.

Run by `pipeline.embedded.lease` only, as `python -m airflow_parallel_apply.router.embedded DIRECTORY LOCK SETTINGS`. It
listens on loopback, and serves whoever has its token, which only its user can read.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Final

from airflow_parallel_apply.pipeline.embedded.layout import HostLayout
from airflow_parallel_apply.pipeline.embedded.lease import Embedded, hold_server, is_idle, stop_server
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.store.memory.link import router_layout
from airflow_parallel_apply.router.memory_pool import choose_memory_pool

IDLE_VARIABLE: Final = "PARALLEL_APPLY_ROUTER_IDLE_SECONDS"
MEMORY_VARIABLE: Final = "PARALLEL_APPLY_ROUTER_MEMORY_MB"
DISK_VARIABLE: Final = "PARALLEL_APPLY_ROUTER_DISK_MB"
INTERVAL_VARIABLE: Final = "PARALLEL_APPLY_ROUTER_INTERVAL_SECONDS"

_NAME: Final = "the embedded router"
_START: Final = timedelta(seconds=120)
_STOP: Final = timedelta(seconds=30)
_TICK_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """Settings of the embedded router. `idle_seconds`: how long it stays when nobody holds a lease: from `route` to the
    first lane. `interval_seconds`: see `GuardLimits`; 0: any distance.
    """

    idle_seconds: float = 300.0
    memory_mb: float = 256.0
    disk_mb: float = 8192.0
    interval_seconds: float = 0.0

    @classmethod
    def from_environment(cls) -> RouterSettings:
        """Defaults, overridden by the PARALLEL_APPLY_ROUTER_… variables. `ConfigurationError` for a bad number."""
        return cls(
            idle_seconds=_number(IDLE_VARIABLE, cls().idle_seconds),
            memory_mb=_number(MEMORY_VARIABLE, cls().memory_mb),
            disk_mb=_number(DISK_VARIABLE, cls().disk_mb),
            interval_seconds=_number(INTERVAL_VARIABLE, cls().interval_seconds),
        )


@contextmanager
def embedded_router(settings: RouterSettings | None = None) -> Iterator[None]:
    """Hold a lease on the embedded router, started here if nobody has. The settings of whoever starts it count. Errors:
    `Unavailable` where it does not start.
    """
    chosen = settings or RouterSettings.from_environment()
    environment = dict(os.environ)
    choose_memory_pool(environment)
    server = Embedded(
        name=_NAME,
        op="route",
        layout=router_layout(),
        module="airflow_parallel_apply.router.embedded",
        arguments=[json.dumps(asdict(chosen))],
        start_timeout=_START,
        environment=environment,
    )
    with hold_server(server):
        yield


def stop_embedded_router() -> bool:
    """Stop this user's router now, whoever uses it. False when none was running."""
    return stop_server(router_layout(), name=_NAME, op="route", timeout=_STOP)


class EmbeddedRouter:
    """One router, from start to end. `serve` returns when it is gone."""

    def __init__(self, layout: HostLayout, settings: RouterSettings) -> None:
        self._layout = layout
        self._settings = settings
        self._asked = threading.Event()

    def serve(self) -> None:
        """Serve until SIGTERM, or until nobody has held the lease for the idle time."""
        # Late: whoever only holds a lease needs none of it.
        from airflow_parallel_apply.router.feeding.feedings import FeedingLimits, Feedings
        from airflow_parallel_apply.router.feeding.guard import GuardLimits
        from airflow_parallel_apply.router.service.logs import LogPaths
        from airflow_parallel_apply.router.service.process import RouterProcess, RouterServing

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        shutil.rmtree(self._layout.work, ignore_errors=True)
        self._layout.work.mkdir()
        token = secrets.token_urlsafe(24)
        interval = self._settings.interval_seconds
        limits = FeedingLimits(
            memory_bytes=int(self._settings.memory_mb * 2**20),
            disk_bytes=int(self._settings.disk_mb * 2**20),
            guard=GuardLimits(interval=timedelta(seconds=interval) if interval else None),
        )
        with self._layout.lease.open("ab") as lease:
            process = RouterProcess(
                RouterServing(logs=LogPaths(anywhere=True), listen="127.0.0.1:0", token=token),
                lambda logs: Feedings(logs, limits, self._layout.work),
            )
            try:
                url = process.url.replace("://", f"://:{token}@", 1)
                self._layout.write_values({"supervisor_pid": os.getpid(), "url": url})
                while not self._asked.wait(_TICK_SECONDS):
                    if is_idle(lease.fileno(), self._settings.idle_seconds):
                        break
            finally:
                self._layout.state.unlink(missing_ok=True)
                has_ended = process.stop()
                shutil.rmtree(self._layout.work, ignore_errors=True)
        if not has_ended:
            # Flight's threads would keep the process.
            logging.shutdown()
            os._exit(0)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._asked.set()


def main(arguments: list[str]) -> None:
    """Detach, so that the starter is not a parent who has to wait, and serve."""
    layout, lock = HostLayout(directory=Path(arguments[0])), int(arguments[1])
    if os.fork() > 0:
        os._exit(0)
    os.set_inheritable(lock, False)
    logging.basicConfig(
        filename=layout.log, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    EmbeddedRouter(layout, RouterSettings(**json.loads(arguments[2]))).serve()


def _number(variable: str, default: float) -> float:
    text = os.environ.get(variable, str(default))
    try:
        number = float(text)
    except ValueError as error:
        raise ConfigurationError(f"{variable}={text!r} is not a number", op="route") from error
    if number < 0:
        raise ConfigurationError(f"{variable}={text!r} is below 0", op="route")
    return number


if __name__ == "__main__":
    main(sys.argv[1:])
