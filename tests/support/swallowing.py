"""A TCP proxy on loopback that may go on acknowledging what it gets, and pass nothing of it on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class SwallowingProxy:
    """In front of a server's port. `swallows`: connections that get bytes while it is set pass on none any more."""

    def __init__(self, port: int) -> None:
        self.swallows = threading.Event()
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server))
                swallowed = threading.Event()
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=(source, target, swallowed), daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _pass(self, source: socket.socket, target: socket.socket, swallowed: threading.Event) -> None:
        with suppress(OSError), source, target:
            while data := source.recv(65_536):
                if self.swallows.is_set():
                    swallowed.set()
                if not swallowed.is_set():
                    target.sendall(data)


@contextmanager
def swallowing_proxy(port: int) -> Iterator[SwallowingProxy]:
    proxy = SwallowingProxy(port)
    threading.Thread(target=proxy.serve, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.close()
