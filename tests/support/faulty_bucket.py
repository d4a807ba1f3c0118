"""An S3 server that fails as a network does: in front of a real one, request by request, where a test says."""

from __future__ import annotations

import http.client
import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BUCKET = "lake"


class Fault(StrEnum):
    """The fate of a request."""

    REFUSED = "refused"
    """503, and nothing happened."""
    LOST = "lost"
    """It is done, and no answer comes."""
    BROKEN = "broken"
    """It is done, and the answer is 500."""
    SLOW = "slow"
    """It is done a while later."""


@dataclass
class FaultyBucket:
    """`address` takes requests; those whose method and path match `pattern` meet `fault`, each so many `times`."""

    address: str
    fault: Fault | None = None
    pattern: str = ""
    times: int = 0
    met: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def meet(self, fault: Fault, pattern: str, times: int = 1) -> None:
        """From now on."""
        self.fault, self.pattern, self.times = fault, pattern, times
        self.met.clear()

    def of(self, request: str) -> Fault | None:
        """The fault that a request meets."""
        with self._lock:
            if self.fault is None or len(self.met) >= self.times or not re.search(self.pattern, request):
                return None
            self.met.append(request)
            return self.fault


@contextmanager
def faulty_bucket() -> Iterator[FaultyBucket]:
    """An empty bucket `lake`. The server behind it is moto's, in this process."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    bucket = FaultyBucket(address="")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            fault = bucket.of(f"{self.command} {self.path}")
            body = self._body()
            if fault is Fault.REFUSED:
                self._answer(503, [], b"")
                return
            if fault is Fault.SLOW:
                time.sleep(2)
            behind = http.client.HTTPConnection(host, port)
            try:
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_THE_HOP}
                behind.request(self.command, self.path, body, headers)
                answer = behind.getresponse()
                content = answer.read()
            finally:
                behind.close()
            if fault is Fault.LOST:
                self.close_connection = True
                self.connection.close()
                return
            if fault is Fault.BROKEN:
                self._answer(500, [], b"")
                return
            self._answer(answer.status, answer.getheaders(), content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815  # names of the base class

        def _body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found

        def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in _OF_THE_HOP:
                    self.send_header(name, value)
            length = dict(headers).get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            """Nothing."""

    front = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    front.daemon_threads = True
    thread = threading.Thread(target=front.serve_forever, daemon=True)
    thread.start()
    bucket.address = f"127.0.0.1:{front.server_address[1]}"
    try:
        yield bucket
    finally:
        front.shutdown()
        front.server_close()
        server.stop()


_OF_THE_HOP = {"connection", "content-length", "transfer-encoding", "expect", "keep-alive"}
