"""A schema registry in memory: it registers schemas, and gives them back."""

from __future__ import annotations

import io
import json
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import fastavro


class Registry(ThreadingHTTPServer):
    """Gives each schema an id, as a registry does: the same one for the same schema."""

    def __init__(self) -> None:
        self.schemas: list[str] = []
        self.subjects: set[str] = set()
        self.lock = threading.Lock()
        self.asked = threading.Event()
        self.answers = threading.Event()
        """An event for which whoever asks waits."""
        self.answers.set()
        super().__init__(("127.0.0.1", 0), _Answer)

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.server_address)

    def read(self, message: bytes) -> dict[str, Any]:
        assert message[:1] == b"\0"
        schema = json.loads(self.schemas[int.from_bytes(message[1:5], "big")])
        found = fastavro.schemaless_reader(io.BytesIO(message[5:]), schema, None)
        assert isinstance(found, dict)
        return found


class _Answer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        registry = self.server
        assert isinstance(registry, Registry)
        registry.asked.set()
        registry.answers.wait(180)
        schema = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["schema"]
        with registry.lock:
            registry.subjects.add(unquote(self.path.split("/")[2]))
            if schema not in registry.schemas:
                registry.schemas.append(schema)
            body = json.dumps({"id": registry.schemas.index(schema)}).encode()
        with suppress(ConnectionError):
            self._answer(body)

    def do_GET(self) -> None:
        registry = self.server
        assert isinstance(registry, Registry)
        self._answer(json.dumps({"schema": registry.schemas[int(self.path.rpartition("/")[2])]}).encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
