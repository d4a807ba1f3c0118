"""Avro in Confluent's wire format: a registry gives the ids, and fastavro reads what was sent."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote

import fastavro
import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from tests.support.kafka import KafkaBroker
from tests.support.kafka.feeds import changes
from tests.support.rig import Rig

TOPIC = "feed.public.t"


class Registry(ThreadingHTTPServer):
    """Gives each schema an id, as a registry does: the same one for the same schema."""

    def __init__(self) -> None:
        self.schemas: list[str] = []
        self.subjects: set[str] = set()
        self.lock = threading.Lock()
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
        schema = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["schema"]
        with registry.lock:
            registry.subjects.add(unquote(self.path.split("/")[2]))
            if schema not in registry.schemas:
                registry.schemas.append(schema)
            body = json.dumps({"id": registry.schemas.index(schema)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def registry() -> Iterator[Registry]:
    found = Registry()
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def test_messages_have_the_id_of_their_schema(
    make_rig: Callable[..., Rig], broker: KafkaBroker, registry: Registry
) -> None:
    rig = make_rig(
        "CREATE TABLE t (id integer PRIMARY KEY, v text)", format="avro", registry=quote(registry.url, safe="")
    ).having(ddl=DdlPolicy.SKIP)
    rig.prepare()
    assert registry.schemas == [], "a check registers nothing"
    rig.write("INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t ADD more integer", "UPDATE t SET more = 7")
    rig.run()
    found = changes(broker.address, TOPIC)
    assert [registry.read(read.key or b"") for read in found] == [{"id": 1}, {"id": 1}]
    values = [registry.read(read.value or b"") for read in found]
    assert [(row["_operation"], row["v"], row.get("more")) for row in values] == [
        ("insert", "a", None),
        ("update", "a", 7),
    ]
    assert registry.subjects == {f"{TOPIC}-key", f"{TOPIC}-value"}


def test_avro_needs_a_registry(make_rig: Callable[..., Rig]) -> None:
    with pytest.raises(ConfigurationError, match="registry"):
        make_rig("CREATE TABLE t (id integer PRIMARY KEY)", format="avro").prepare()
