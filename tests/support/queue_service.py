"""The queue's service in a thread or a process, and its asynchronous client for tests that are none."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow_parallel_apply.demo.ports import free_port
from airflow_parallel_apply.queue import Queue
from airflow_parallel_apply.queue.client import AsyncQueueClient
from airflow_parallel_apply.queue.memory import DataDirectory, Disk
from airflow_parallel_apply.queue.service.process import Serving, serve_data


class LoopThread:
    """An event loop of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class ServedQueue:
    """Served until `stop`."""

    def __init__(self, directory: Path, *, disk: Disk | None = None, **options: Any) -> None:
        self._thread = LoopThread()
        self.serving = Serving(data=directory, **options)
        self.data = DataDirectory(directory, limits=self.serving.data_limits, disk=disk)
        self._stop = asyncio.Event()
        ready: Future[dict[str, Any]] = Future()
        self._served = self._thread.submit(serve_data(self.serving, self.data, self._stop, ready.set_result))
        self._served.add_done_callback(lambda done: ready.done() or ready.set_exception(done.exception()))
        self.ready = ready.result(timeout=180)
        self.url = str(self.ready["url"])

    def stop(self) -> None:
        if self._served.done():
            return
        self._thread.loop.call_soon_threadsafe(self._stop.set)
        self._served.result(timeout=180)
        self.data.close()
        self._thread.stop()


class AwaitedQueue(Queue):
    """Each call awaited in a loop in another thread."""

    def __init__(self, url: str) -> None:
        self._thread = LoopThread()
        self._client = AsyncQueueClient(url)
        self._closed = False
        for name in ("claim_many", "try_claim", "claim", "modify", "renew", "tasks", "queue_stats", "wait_empty"):
            setattr(self, name, self._awaited(getattr(self._client, name)))

    def _awaited(self, method: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            return self._thread.submit(method(*arguments, **options)).result(timeout=600)

        return call

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._thread.submit(self._client.close()).result(timeout=180)


class ServiceProcess:
    """`serve`, as a user starts it: by default at a port that stays its own while it is down."""

    def __init__(self, directory: Path, *arguments: str, listen: str = "") -> None:
        self.ready_file = directory.with_name("ready.json")
        self.ready_file.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "airflow_parallel_apply.queue", "serve", "--data", str(directory),
                "--listen", listen or f"127.0.0.1:{free_port()}", "--ready-file", str(self.ready_file), *arguments,
            ],
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        until(lambda: self.ready_file.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()
        self.ready: dict[str, Any] = json.loads(self.ready_file.read_text())
        self.url = str(self.ready["url"])

    def end(self, number: int) -> tuple[int, str]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=180)
        return self.process.returncode, errors


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """For `localhost`, its own authority: certificate and key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = (folder / "cert.pem", folder / "key.pem")
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths
