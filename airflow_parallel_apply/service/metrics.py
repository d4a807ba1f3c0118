"""The HTTP server of a service's metrics, for Prometheus."""

from __future__ import annotations

import hmac
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, make_wsgi_app

from airflow_parallel_apply.service.address import split_address
from airflow_parallel_apply.service.listening import Listening

_MAX_CONNECTIONS: Final = 64
_SILENCE_SECONDS: Final = 10.0
"""Longest wait for the next bytes of a caller."""
_CALL_SECONDS: Final = 30.0
"""Longest call: a caller that sends a byte now and then is not silent, and would hold a thread for days."""


def new_registry() -> CollectorRegistry:
    """A registry that tells of this process already."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


def serve_metrics(registry: CollectorRegistry, listening: Listening) -> MetricsServer | None:
    """Serve them where that is asked for. Errors: `OSError` where it cannot listen."""
    if listening.metrics_listen is None:
        return None
    where = split_address(listening.metrics_listen)
    return MetricsServer(registry, *where, token=listening.token, tls=listening.tls_context())


class MetricsServer:
    """Answers `GET /metrics` in threads of its own, under the service's TLS and token where it has them."""

    def __init__(
        self, registry: CollectorRegistry, host: str, port: int, *, token: str | None, tls: ssl.SSLContext | None
    ) -> None:
        application = make_wsgi_app(registry)
        self._server = make_server(
            host, port, _guarded(application, token), server_class=_ThreadingServer, handler_class=_QuietHandler
        )
        self._server.tls = tls
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    """A caller that says nothing holds a thread of its own, for a while; never the one that accepts. So the handshake
    belongs to the connection's thread, and the threads are counted: who comes beyond them is sent away.
    """

    daemon_threads = True
    tls: ssl.SSLContext | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(_SILENCE_SECONDS)
        # A handle of its own: TLS takes the socket over.
        line = request.dup()
        end = threading.Timer(_CALL_SECONDS, _hang_up, (line,))
        end.daemon = True
        end.start()
        try:
            if self.tls is None:
                super().finish_request(request, client_address)
                return
            with self.tls.wrap_socket(request, server_side=True) as secured:
                super().finish_request(secured, client_address)
        except OSError:
            # The caller went away, kept silent, took too long, or speaks no TLS.
            return
        finally:
            end.cancel()
            line.close()


def _hang_up(line: socket.socket) -> None:
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


class _QuietHandler(WSGIRequestHandler):
    timeout = _SILENCE_SECONDS

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing of each scrape."""


def _guarded(application: Callable[..., Any], token: str | None) -> Callable[..., Any]:
    def answer(environment: dict[str, Any], start: Callable[..., Any]) -> Any:
        given = environment.get("HTTP_AUTHORIZATION", "")
        if token is not None and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            start("401 Unauthorized", [("WWW-Authenticate", "Bearer")])
            return [b"a token is wanted\n"]
        return application(environment, start)

    return answer
