"""A TCP proxy on loopback: cuts every connection once so many bytes have passed, and then serves as before."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class Proxy:
    """In front of a server's port. Cuts once."""

    def __init__(self, port: int, after_bytes: int) -> None:
        self._server = port
        self._left = after_bytes
        self._is_cut = False
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._end_all()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server))
            except OSError:
                return
            with self._lock:
                self._open |= {client, server}
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                with self._lock:
                    self._left -= len(data)
                    cut, self._is_cut = self._left < 0 and not self._is_cut, self._is_cut or self._left < 0
                if cut:
                    self._end_all()
                    return
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _end_all(self) -> None:
        with self._lock:
            ending, self._open = self._open, set()
        for each in ending:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
