"""The queue's service as a process: how it starts, stops, and whom it lets in."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from airflow_parallel_apply.queue import (
    Insert,
    Queue,
    QueueUnavailable,
    open_queue,
)
from airflow_parallel_apply.queue.client import QueueClient, calls
from airflow_parallel_apply.queue.service import process
from airflow_parallel_apply.queue.service import queue_pb2 as pb
from airflow_parallel_apply.service import metrics
from tests.support.queue_service import ServedQueue, ServiceProcess, until
from tests.support.queue_wire import refusal
from tests.support.variants import gated

LEASE = timedelta(minutes=5)
LONG = timedelta(seconds=60)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ServiceProcess]]:
    started: list[ServiceProcess] = []

    def start_one(*arguments: str, **options: Any) -> ServiceProcess:
        started.append(ServiceProcess(tmp_path / "queue", *arguments, **options))
        return started[-1]

    yield start_one
    for one in started:
        one.process.kill()
        one.process.communicate()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedQueue]:
    one = ServedQueue(
        tmp_path / "queue",
        metrics_listen="127.0.0.1:0",
    )
    yield one
    one.stop()


def put(queue: Queue, *inserts: Insert) -> Any:
    return queue.modify(claimant="maker", insert=inserts)


def test_a_service_that_is_told_to_stop_ends_what_it_does_and_another_goes_on(
    start: Callable[..., ServiceProcess], tmp_path: Path
) -> None:
    service = start()
    queue = open_queue(service.ready["url"])
    (made,) = put(queue, Insert(queue="q", value={"n": 1}))
    held = queue.try_claim(["q"], claimant="a", lease=LEASE)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.claim, ["late"], claimant="b", lease=LEASE, timeout=LONG)
        assert service.end(signal.SIGTERM)[0] == 0
        assert not service.ready_file.exists()
        # The one who waits was told, and looks for the next service at the same address.
        another = start(listen=service.ready["address"])
        put(queue, Insert(queue="late"))
        assert waiting.result(timeout=180).queue == "late"
    assert queue.tasks("q") == (held,)
    assert held is not None
    assert held.task_id == made.task_id
    queue.close()
    assert another.end(signal.SIGTERM)[0] == 0
    check = subprocess.run(
        [sys.executable, "-m", "airflow_parallel_apply.queue", "check", str(tmp_path / "queue"), "--json"],
        capture_output=True, text=True,
    )  # fmt: skip
    report = json.loads(check.stdout)
    assert (check.returncode, report["tasks"], report["queues"], report["torn"]) == (0, 2, 2, [])


@gated
def test_what_cannot_be_served_is_said_and_exits_with_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, message in (
            (["--listen", "0.0.0.0:0"], "needs TLS and a token"),
            (["--listen", f"127.0.0.1:{port}"], "cannot listen on"),
            (["--listen", "nonsense"], "an address is host:port"),
            (["--token-file", str(tmp_path / "none")], "the token cannot be read"),
            (["--tls-cert", __file__, "--tls-key", __file__], f"the certificate {__file__} with the key"),
            (["--ready-file", str(tmp_path / "none" / "ready")], "the ready file cannot be written"),
            (["--data", "/proc/nowhere"], "cannot be opened"),
        ):
            done = subprocess.run(
                [
                    sys.executable, "-m", "airflow_parallel_apply.queue", "serve",
                    "--data", str(tmp_path / "q"), *arguments,
                ],
                capture_output=True, text=True, timeout=180,
            )  # fmt: skip
            assert done.returncode == 1
            # gRPC may say something of its own in front.
            assert message in done.stderr.splitlines()[-1]


def test_health_is_told_to_anybody(served: ServedQueue) -> None:
    with grpc.insecure_channel(served.url.removeprefix("grpc://")) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "parallel_apply.queue.v1.Queue"):
            reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=120)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_metrics_count_calls_and_tasks(served: ServedQueue) -> None:
    queue = open_queue(served.url)
    put(queue, Insert(queue="q"), Insert(queue="q"))
    queue.try_claim(["q"], claimant="a", lease=LEASE)
    code, details = refusal(served.url, "Claim", pb.ClaimRequest(queues=[""], claimant="a").SerializeToString())
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "queue's name" in details
    address = f"http://127.0.0.1:{served.ready['metrics_port']}/metrics"

    def scraped() -> list[str]:
        lines: list[str] = urllib.request.urlopen(address, timeout=120).read().decode().splitlines()
        return lines

    # A call is counted behind its answer.
    until(lambda: "queue_calls_waiting 0.0" in scraped())
    lines = scraped()
    queue.close()
    for line in (
        'queue_tasks{queue="q",state="claimed"} 1.0',
        'queue_tasks{queue="q",state="available"} 1.0',
        'queue_calls_total{code="OK",method="Claim"} 1.0',
        'queue_calls_total{code="INVALID_ARGUMENT",method="Claim"} 1.0',
        "queue_log_position 2.0",
        "queue_log_synced_position 2.0",
        "queue_log_broken 0.0",
    ):
        assert line in lines


@gated
def test_the_command_looks_into_a_service_and_has_it_take_a_snapshot(served: ServedQueue) -> None:
    queue = open_queue(served.url)
    put(queue, Insert(queue="a/1", value="x"), Insert(queue="b", sequence=7))
    queue.close()

    def command(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "airflow_parallel_apply.queue", *arguments, "--dsn", served.url],
            capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert [row["queue"] for row in json.loads(command("stats", "--prefix", "a/", "--json"))] == ["a/1"]
    assert [row["sequence"] for row in json.loads(command("tasks", "b", "--json"))] == [7]
    name = command("snapshot").strip()
    assert (served.serving.data / name).exists()


@gated
def test_a_service_that_is_not_there_is_unavailable_when_the_deadline_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine takes its time to find that out.
    monkeypatch.setattr(calls, "_PROBE_SECONDS", 120.0)
    queue = QueueClient("grpc://127.0.0.1:1", deadline=timedelta(milliseconds=500))
    for call in (
        queue.queue_stats,
        lambda: put(queue, Insert(queue="q")),
        lambda: queue.claim(["q"], claimant="a", lease=LEASE, timeout=timedelta(milliseconds=100)),
    ):
        with pytest.raises(QueueUnavailable, match=r"127\.0\.0\.1:1 cannot be reached"):
            call()
    queue.close()


def test_a_silent_connection_holds_up_neither_metrics_nor_the_end(
    certificate: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody sends the silent ones away meanwhile.
    monkeypatch.setattr(metrics, "_CALL_SECONDS", 3600.0)
    monkeypatch.setattr(process, "_GRACE_SECONDS", 3600.0)
    served = ServedQueue(
        tmp_path / "queue",
        listen="localhost:0",
        tls_certificate=certificate[0],
        tls_key=certificate[1],
        metrics_listen="localhost:0",
    )
    port = int(served.ready["metrics_port"])
    trusting = ssl.create_default_context(cafile=certificate[0])
    with ExitStack() as silent:
        for silent_at in (port, int(served.url.rpartition(":")[2])):
            for _ in range(3):
                silent.enter_context(socket.create_connection(("localhost", silent_at)))
        with urllib.request.urlopen(f"https://localhost:{port}/metrics", context=trusting, timeout=120) as answer:
            assert b"queue_log_position" in answer.read()
        served.stop()


@gated
def test_a_caller_that_sends_a_byte_now_and_then_is_sent_away(
    certificate: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_CALL_SECONDS", 1.0)
    for number, tls in enumerate(({}, {"tls_certificate": certificate[0], "tls_key": certificate[1]})):
        served = ServedQueue(tmp_path / f"queue{number}", listen="localhost:0", metrics_listen="localhost:0", **tls)
        with socket.create_connection(("localhost", int(served.ready["metrics_port"]))) as plain, ExitStack() as stack:
            trusting = ssl.create_default_context(cafile=certificate[0])
            line = stack.enter_context(trusting.wrap_socket(plain, server_hostname="localhost")) if tls else plain
            line.settimeout(0.1)
            until(lambda line=line: _is_hung_up(line))
        served.stop()


def _is_hung_up(line: socket.socket) -> bool:
    """Sends one more byte of a request's first line."""
    try:
        line.sendall(b"G")
        return line.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True
