"""A local S3 server, a process of its own, that fails as it is told: `python -m tests.support.failing_s3 <port>`.

A client that waits inside Python's lock for an answer would wait for ever for a server in its own process.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from typing import Any, Self

from pyarrow import fs

_SECONDS = 60
_CONTROL = "/-/faults"

Answer = Iterable[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The share of requests that fail in each way; which ones a seed says. `busy`: 503, and nothing was done. `lost`:
    it was done, and the connection ends without an answer. `cut`: the answer ends in its middle. `late`: it comes after
    `seconds`. `denied`: 403 to everything that writes. `is_plain`: a refused condition is told without its name, as not
    every service does it.
    """

    busy: float = 0
    lost: float = 0
    cut: float = 0
    late: float = 0
    seconds: float = 5
    denied: bool = False
    is_plain: bool = False
    seed: int = 0


class FailingS3:
    """Runs the server. `url`: of a place in its one bucket, for a scheme in front of `s3`."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen([sys.executable, "-m", "tests.support.failing_s3", str(self._port)])
        files = fs.S3FileSystem(
            access_key="key", secret_key="secret", endpoint_override=f"127.0.0.1:{self._port}", scheme="http",
            allow_bucket_creation=True,
        )  # fmt: skip
        deadline = time.monotonic() + _SECONDS
        while True:
            try:
                files.create_dir("lake")
                return self
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    self.__exit__()
                    raise

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def url(self, scheme: str, name: str) -> str:
        """The address of a target."""
        endpoint = f"http://127.0.0.1:{self._port}"
        return f"{scheme}+s3://key:secret@lake/{name}?region=us-east-1&endpoint_url={endpoint}"

    def fail(self, faults: Faults) -> int:
        """Fail so from now on; how many requests have failed until now."""
        asking = HTTPConnection("127.0.0.1", self._port, timeout=_SECONDS)
        with closing(asking):
            asking.request("POST", _CONTROL, body=json.dumps(asdict(faults)))
            return int(asking.getresponse().read())


class _OneAtATime:
    """An application in front of another one, whose conditional writes hold: moto looks first and writes then, so that
    of two at once both pass.
    """

    def __init__(self, application: Callable[..., Answer]) -> None:
        self._application = application
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Answer:
        with self._lock:
            return self._application(environ, start_response)


class _Failing:
    """An application in front of another one."""

    def __init__(self, application: Callable[..., Answer]) -> None:
        self._application = application
        self._lock = threading.Lock()
        self._faults = Faults()
        self._chance = random.Random(0)
        self._count = 0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Answer:
        if environ["PATH_INFO"] == _CONTROL:
            return self._told(environ, start_response)
        with self._lock:
            faults, drawn = self._faults, self._chance.random()
        ends: list[float] = []
        for share in (faults.busy, faults.lost, faults.cut, faults.late):
            ends.append(share + (ends[-1] if ends else 0))
        place = next((number for number, end in enumerate(ends) if drawn < end), None)
        is_denied = faults.denied and environ["REQUEST_METHOD"] in ("PUT", "POST", "DELETE")
        self._count += place is not None or is_denied
        if is_denied or place == 0:
            code, status = ("AccessDenied", "403 Forbidden") if is_denied else ("SlowDown", "503 Slow Down")
            # A request that is not read to its end leaves the rest to the next one.
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response(status, [("Content-Type", "application/xml"), ("Connection", "close")])
            return [f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()]
        if place == 3:
            time.sleep(faults.seconds)
        if place not in (1, 2):
            return (self._plain if faults.is_plain else self._application)(environ, start_response)
        given: list[Any] = []
        body = b"".join(self._application(environ, lambda *told: given.append(told)))
        if place == 2 and body:
            start_response(*given[0])
            return _cut(environ, body)
        _hang_up(environ)
        start_response("500 Internal Server Error", [])
        return []

    def _plain(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Answer:
        given: list[Any] = []
        body = b"".join(self._application(environ, lambda *told: given.append(told)))
        status, headers, *more = given[0]
        if status.startswith("412"):
            body = b"<Error><Code>PreconditionFailed</Code><Message>It does not hold</Message></Error>"
            headers = [one for one in headers if one[0].lower() != "content-length"]
            headers.append(("Content-Length", str(len(body))))
        start_response(status, headers, *more)
        return [body]

    def _told(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Answer:
        content = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        with self._lock:
            self._faults = Faults(**json.loads(content))
            self._chance = random.Random(self._faults.seed)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [str(self._count).encode()]


def _cut(environ: dict[str, Any], body: bytes) -> Answer:
    yield body[: len(body) // 2]
    _hang_up(environ)


def _hang_up(environ: dict[str, Any]) -> None:
    with suppress(OSError):
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)


def main(port: int) -> None:
    """Serve until the process is ended."""
    import logging

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    application = _Failing(_OneAtATime(DomainDispatcherApplication(create_backend_app)))
    make_server("127.0.0.1", port, application, True, request_handler=MotoRequestHandler).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
