"""`serve`: logs behind Arrow Flight, from start to SIGTERM.

It ends in order: health says so, no more streams are taken, those under way end, what takes too long is cut off: its
caller asks again elsewhere or later, and gets the same rows.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.router.service.limits import RouterLimits
from airflow_parallel_apply.router.service.logs import LogPaths, ServedLogs
from airflow_parallel_apply.router.service.metrics import HeldCollector, RouterMetrics
from airflow_parallel_apply.router.service.protocol import Answerer
from airflow_parallel_apply.router.service.server import RouterServer
from airflow_parallel_apply.service.address import join_address, split_address
from airflow_parallel_apply.service.listening import Listening
from airflow_parallel_apply.service.metrics import new_registry, serve_metrics

_SHUTDOWN_SECONDS: Final = 5.0
"""For the last answers to leave once every stream has ended. A caller that takes none of what it was sent holds up
Flight's own shutdown for ever.
"""

_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterServing(Listening):
    """The logs, where they are served, and within which limits. Errors: those of `Listening`."""

    logs: LogPaths
    limits: RouterLimits = field(default_factory=RouterLimits)


class RouterProcess:
    """A router under way; `stop` drains it. `answerer`: makes what holds rows beside the log."""

    def __init__(self, serving: RouterServing, answerer: Callable[[ServedLogs], Answerer] | None = None) -> None:
        serving.tls_context()
        self._serving = serving
        logs = ServedLogs(serving.logs)
        held = None if answerer is None else answerer(logs)
        registry = new_registry()
        host, port = split_address(serving.listen)
        scheme = "grpc+tcp" if serving.tls_certificate is None else "grpc+tls"
        try:
            self._server = RouterServer(
                logs,
                f"{scheme}://{join_address(host, port)}",
                limits=serving.limits,
                metrics=RouterMetrics(registry),
                answerer=held,
                token=serving.token,
                **_tls(serving),
            )
        except (OSError, pa.ArrowException) as error:
            raise ConfigurationError(f"the router cannot listen on {serving.listen}: {error}", op="serve") from error
        memory = self._server.memory
        registry.register(HeldCollector(lambda: memory.taken, held))
        try:
            self._metrics = serve_metrics(registry, serving)
        except OSError as error:
            self._server.shutdown()
            raise ConfigurationError(
                f"metrics cannot listen on {serving.metrics_listen}: {error}", op="serve"
            ) from error
        self.address = join_address(host, self._server.port)
        self.url = f"{serving.scheme}://{self.address}"
        serving.say_ready(
            {
                "address": self.address,
                "url": self.url,
                "pid": os.getpid(),
                "metrics_port": None if self._metrics is None else self._metrics.port,
            }
        )
        _logger.info("serving %s on %s", ", ".join(logs.names()) or "no log yet", self.address)

    def stop(self) -> bool:
        """Drain and end; False where a caller that takes nothing had to be left behind."""
        self._serving.say_ended()
        if not self._server.drain():
            _logger.warning("streams were cut off; their callers ask again")
        if self._metrics is not None:
            self._metrics.close()
        ending = threading.Thread(target=self._server.shutdown, name="flight shutdown", daemon=True)
        ending.start()
        ending.join(_SHUTDOWN_SECONDS)
        return not ending.is_alive()


def serve(serving: RouterServing, answerer: Callable[[ServedLogs], Answerer] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Errors: `ConfigurationError`; nothing is served then."""
    with _until_signalled() as wait_for_signal:
        process = RouterProcess(serving, answerer)
        wait_for_signal()
        if not process.stop():
            # Flight's threads would keep the process.
            logging.shutdown()
            os._exit(0)


@contextmanager
def _until_signalled() -> Iterator[Callable[[], object]]:
    """A wait for the signal that ends the process. The system may hand it to one of Flight's threads, which does not
    wake Python's main thread; a socket that Python writes to on any of them does. Signals do afterwards what they did
    before.
    """
    reading, writing = socket.socketpair()
    with reading, writing:
        writing.setblocking(False)
        wakeup = signal.set_wakeup_fd(writing.fileno())
        # The wait returns where the handler does.
        handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield lambda: reading.recv(1)
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _tls(serving: RouterServing) -> dict[str, Any]:
    if serving.tls_certificate is None or serving.tls_key is None:
        return {}
    pair = (serving.tls_certificate.read_bytes(), serving.tls_key.read_bytes())
    if serving.tls_client_ca is None:
        return {"tls_certificates": [pair]}
    return {
        "tls_certificates": [pair],
        "verify_client": True,
        "root_certificates": serving.tls_client_ca.read_bytes(),
    }
