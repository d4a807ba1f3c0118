"""The broker's server: one thread for each connection, on the loopback interface."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from airflow_parallel_apply.demo.kafka.answers import Answers
from airflow_parallel_apply.demo.kafka.state import State
from airflow_parallel_apply.demo.kafka.wire import Request, numbers
from airflow_parallel_apply.demo.ports import free_port

_HOST: Final = "127.0.0.1"
_LENGTH_BYTES: Final = 4


class KafkaBroker:
    """One broker, for clients of this process and of others. What it holds, and its port, stay the same over `stop` and
    `start`, as those of a broker do whose disk survives; they are gone with this process.
    """

    def __init__(self, *, default_partitions: int = 4) -> None:
        """`default_partitions`: of topics that come with their first use."""
        self.state = State(default_partitions=default_partitions)
        self.port = free_port()
        self._server: _Server | None = None

    @property
    def address(self) -> str:
        """For `bootstrap.servers`."""
        return f"{_HOST}:{self.port}"

    def start(self) -> Self:
        """Listen. Errors: `OSError` where somebody else has the port."""
        self._server = _Server(self.state, self.port)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def stop(self) -> None:
        """As a crash: cut all connections; a request under way may have been carried out, and is not answered.
        Idempotent.
        """
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            server.cut()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, state: State, port: int) -> None:
        self.answers = Answers(state, _HOST, port)
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__((_HOST, port), _Connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def cut(self) -> None:
        """End all connections."""
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Connection(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        with suppress(ConnectionError):
            while (size := self._read(_LENGTH_BYTES)) is not None:
                data = self._read(struct.unpack(">i", size)[0])
                if data is None:
                    return
                self._answer(Request(data))

    def _answer(self, request: Request) -> None:
        key, version, correlation = request.number("h"), request.number("h"), request.number("i")
        request.text()
        body = self.server.answers.of(key, version, request)
        if body is not None:
            answer = numbers("i", correlation) + body
            self.request.sendall(numbers("i", len(answer)) + answer)

    def _read(self, size: int) -> bytes | None:
        """So many bytes; None where the client is gone."""
        found = b""
        while len(found) < size:
            piece = self.request.recv(size - len(found))
            if not piece:
                return None
            found += piece
        return found
