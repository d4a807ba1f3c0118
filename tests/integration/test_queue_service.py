"""The queue's service as a process, and what callers that are not ours may send it."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import unicodedata
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from airflow_parallel_apply.queue import (
    DependencyError,
    Insert,
    Queue,
    QueueFull,
    QueueMisconfigured,
    QueueUnavailable,
    TaskRef,
    open_queue,
)
from airflow_parallel_apply.queue.client import QueueClient
from airflow_parallel_apply.queue.client.calls import REPLIES, path_of
from airflow_parallel_apply.queue.memory import DataLimits, Disk
from airflow_parallel_apply.queue.service import queue_pb2 as pb
from airflow_parallel_apply.queue.service.limits import ServiceLimits
from airflow_parallel_apply.queue.service.process import Serving
from tests.support.queue_service import ServedQueue, ServiceProcess, make_certificate, until

LEASE = timedelta(minutes=5)
LONG = timedelta(seconds=60)
TOKEN = "a token of ours"


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
        limits=ServiceLimits(max_value_bytes=100_000, max_entries=10_000, max_message_bytes=4 * 2**20),
        data_limits=DataLimits(max_queue_tasks=20_000),
        metrics_listen="127.0.0.1:0",
    )
    yield one
    one.stop()


def put(queue: Queue, *inserts: Insert) -> Any:
    return queue.modify(claimant="maker", insert=inserts)


def raw(url: str, method: str, content: bytes, **options: Any) -> Any:
    """A call of somebody who writes the bytes themselves."""
    with grpc.insecure_channel(url.removeprefix("grpc://")) as channel:
        make = channel.unary_stream if method == "Tasks" else channel.unary_unary
        call = make(path_of(method), request_serializer=bytes, response_deserializer=REPLIES[method].FromString)
        reply = call(content, timeout=30, **options)
        return list(reply) if method == "Tasks" else reply


def status_of(url: str, method: str, content: bytes) -> str:
    """Empty for bytes that happened to be a message."""
    try:
        raw(url, method, content)
    except grpc.RpcError as error:
        return str(error.code().name) if error.details() else "no word"
    return ""


def refusal(url: str, method: str, content: bytes, **options: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as refused:
        raw(url, method, content, **options)
    return refused.value.code(), refused.value.details()


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
        assert waiting.result(timeout=60).queue == "late"
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


def test_no_task_is_lost_or_done_twice_while_the_service_is_killed_again_and_again(
    start: Callable[..., ServiceProcess],
) -> None:
    """A worker finishes a task by one modify that deletes it and inserts its result: as many results as tasks."""
    count, workers, kills = 400, 4, 4
    service = start()
    address = service.ready["address"]
    with QueueClientOf(service) as queue:
        put(queue, *(Insert(queue="to do", value=n) for n in range(count)))

    def work(name: str) -> None:
        with QueueClientOf(service) as mine:
            while not mine.wait_empty(exact=["to do"], timeout=timedelta(0)):
                task = mine.claim(["to do"], claimant=name, lease=timedelta(seconds=2), timeout=timedelta(seconds=1))
                if task is None:
                    continue
                try:
                    mine.modify(claimant=name, delete=[task.ref], insert=[Insert(queue="done", value=task.value)])
                except (QueueUnavailable, DependencyError):
                    # Unknown, or it was done and this is the lease's next holder: the queue knows.
                    continue

    chance = random.Random(os.environ.get("CRASH_SEED"))
    with ThreadPoolExecutor(workers) as pool:
        working = [pool.submit(work, f"w{number}") for number in range(workers)]
        with QueueClientOf(service) as looking:
            for kill in range(kills):
                least = chance.randrange(count // kills * kill, count // kills * (kill + 1))
                until(lambda least=least: sum(row.size for row in looking.queue_stats(exact=["done"])) >= least)
                service.end(signal.SIGKILL)
                service = start(listen=address)
        for one in working:
            one.result(timeout=120)
    with QueueClientOf(service) as queue:
        assert sorted(task.value for task in queue.tasks("done")) == list(range(count))
        assert [row.queue for row in queue.queue_stats()] == ["done"]


class QueueClientOf:
    """A client that is closed behind it."""

    def __init__(self, service: ServiceProcess) -> None:
        self._queue = QueueClient(service.ready["url"])

    def __enter__(self) -> QueueClient:
        return self._queue

    def __exit__(self, *_: object) -> None:
        self._queue.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("shown", [True, False])
def test_with_an_authority_of_callers_only_its_certificates_get_in(
    certificate: tuple[Path, Path], tmp_path: Path, shown: bool
) -> None:
    cert, key = certificate
    theirs = make_certificate(tmp_path)
    served = ServedQueue(
        tmp_path / "queue", listen="localhost:0", tls_certificate=cert, tls_key=key, tls_client_ca=theirs[0],
        token=TOKEN, metrics_listen="localhost:0",
    )  # fmt: skip
    address = served.url.replace("grpcs://", f"grpcs://:{TOKEN.replace(' ', '%20')}@") + f"?ca={cert}"
    context = ssl.create_default_context(cafile=str(cert))
    if shown:
        address += f"&cert={theirs[0]}&key={theirs[1]}"
        context.load_cert_chain(*theirs)
    queue = QueueClient(address, deadline=timedelta(seconds=2))
    asked = urllib.request.Request(
        f"https://localhost:{served.ready['metrics_port']}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    try:
        if shown:
            assert queue.queue_stats() == ()
            assert urllib.request.urlopen(asked, context=context, timeout=30).status == 200  # noqa: S310
        else:
            with pytest.raises(QueueUnavailable):
                queue.queue_stats()
            with pytest.raises(OSError, match=r"(?i)certificate|handshake|reset|closed|eof"):
                urllib.request.urlopen(asked, context=context, timeout=30)  # noqa: S310
    finally:
        queue.close()
        served.stop()


def test_with_tls_and_a_token_only_who_has_both_gets_in(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = certificate
    served = ServedQueue(
        tmp_path / "queue", listen="localhost:0", tls_certificate=cert, tls_key=key, token=TOKEN,
        metrics_listen="localhost:0",
    )  # fmt: skip
    try:
        port = served.url.rpartition(":")[2]
        at = f"localhost:{port}?ca={cert}"
        queue = open_queue(f"grpcs://:{TOKEN.replace(' ', '%20')}@{at}")
        put(queue, Insert(queue="q", value=1))
        assert [task.value for task in queue.tasks("q")] == [1]
        queue.close()
        for token in ("", ":wrong@"):
            refused = open_queue(f"grpcs://{token}{at}")
            for call in (lambda one=refused: one.tasks("q"), lambda one=refused: put(one, Insert(queue="q"))):
                with pytest.raises(QueueMisconfigured, match="wants a token"):
                    call()
            refused.close()
        plain = QueueClient(f"grpc://localhost:{port}", deadline=timedelta(seconds=1))
        with pytest.raises(QueueUnavailable):
            plain.queue_stats()
        plain.close()
        metrics_url = f"https://localhost:{served.ready['metrics_port']}/metrics"
        context = ssl.create_default_context(cafile=str(cert))
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(metrics_url, context=context, timeout=30)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        asked = urllib.request.Request(metrics_url, headers=headers)
        assert (
            b'queue_tasks{queue="q",state="available"} 1.0'
            in urllib.request.urlopen(asked, context=context, timeout=30).read()  # noqa: S310
        )
    finally:
        served.stop()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "queue.example:0"])
def test_beyond_loopback_it_listens_only_with_tls_and_a_token(listen: str, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    for options in ({}, {"token": TOKEN}, {"tls_certificate": cert, "tls_key": key}):
        for where in ({"listen": listen}, {"metrics_listen": listen}):
            with pytest.raises(ValueError, match="needs TLS and a token"):
                Serving(data=Path("unused"), **where, **options)
    Serving(data=Path("unused"), listen=listen, token=TOKEN, tls_certificate=cert, tls_key=key)


def test_what_cannot_be_served_is_said_and_exits_with_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, message in (
            (["--listen", "0.0.0.0:0"], "needs TLS and a token"),
            (["--listen", f"127.0.0.1:{port}"], "cannot listen on"),
            (["--listen", "nonsense"], "an address is host:port"),
            (["--token-file", str(tmp_path / "none")], "the token cannot be read"),
            (["--data", "/proc/nowhere"], "cannot be opened"),
        ):
            done = subprocess.run(
                [
                    sys.executable, "-m", "airflow_parallel_apply.queue", "serve",
                    "--data", str(tmp_path / "q"), *arguments,
                ],
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert done.returncode == 1
            # gRPC may say something of its own in front.
            assert message in done.stderr.splitlines()[-1]


def test_health_is_told_to_anybody(served: ServedQueue) -> None:
    with grpc.insecure_channel(served.url.removeprefix("grpc://")) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "parallel_apply.queue.v1.Queue"):
            reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
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
        lines: list[str] = urllib.request.urlopen(address, timeout=30).read().decode().splitlines()
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


def test_bytes_that_are_no_message_are_refused_clearly_and_the_service_stays_up(served: ServedQueue) -> None:
    chance = random.Random(0)
    for method in REPLIES:
        for content in (b"\xff", b"\x0a\xff\xff\xff\xff\x0f", *(chance.randbytes(60) for _ in range(30))):
            said = status_of(served.url, method, content)
            assert said in ("", "INVALID_ARGUMENT"), (method, content)
    queue = open_queue(served.url)
    put(queue, Insert(queue="alive"))
    assert [row.queue for row in queue.queue_stats()] == ["alive"]
    queue.close()


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (pb.ModifyRequest(claimant="a", insert=[pb.Insert(queue="q", value="{")]), "must be JSON"),
        (pb.ModifyRequest(claimant="a", insert=[pb.Insert(queue="q")]), "must be JSON"),
        (pb.ModifyRequest(claimant="a", insert=[pb.Insert(queue="q", value="NaN")]), "JSON has no NaN"),
        (pb.ModifyRequest(claimant="a", insert=[pb.Insert(queue="q", value="[" * 90_000)]), "must be JSON"),
        (pb.ModifyRequest(claimant="a", insert=[pb.Insert(queue="q", value='"' + "x" * 200_000)]), "at most 100000"),
        (pb.ModifyRequest(claimant="a", insert=[pb.Insert(queue="q", value="1", id=b"short")]), "an id has 16 bytes"),
        (pb.ModifyRequest(claimant="a", insert=[pb.Insert(queue="q", value="1", attempt=-1)]), "an attempt is"),
        (pb.ModifyRequest(claimant="a", insert=[pb.Insert(queue="", value="1")]), "queue's name"),
        (pb.ModifyRequest(insert=[pb.Insert(queue="q", value="1")]), "claimant's name"),
        (
            pb.ModifyRequest(claimant="a", insert=[pb.Insert(queue="q", value="1", at=pb.Arrival(at=2**63 - 1))]),
            "no time",
        ),
        (
            pb.ModifyRequest(claimant="a", insert=[pb.Insert(queue="q", value="1", at=pb.Arrival(delay=-(2**63)))]),
            "so far off",
        ),
        (pb.ModifyRequest(claimant="a", delete=[pb.TaskRef(id=b"x" * 16)] * 2), "disjoint"),
        (pb.ModifyRequest(claimant="a", delete=[pb.TaskRef(id=b"x" * 16)] * 10_001), "at most 10000 entries"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_modify_that_no_client_of_ours_sends_is_refused_with_what_is_wrong(
    served: ServedQueue, message: pb.ModifyRequest, said: str
) -> None:
    code, details = refusal(served.url, "Modify", message.SerializeToString())
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert said in details
    assert served.data.engine.queue_stats() == ()


def test_ten_thousand_ids_in_one_modify_are_all_answered(served: ServedQueue) -> None:
    queue = open_queue(served.url)
    made = put(queue, *(Insert(queue="q", value=n) for n in range(10_000)))
    assert [task.value for task in made] == list(range(10_000))
    with pytest.raises(DependencyError) as refused:
        queue.modify(claimant="a", delete=[TaskRef(task_id=task.task_id, version=7) for task in made])
    assert len(refused.value.deletes) == 10_000
    assert queue.tasks("q", limit=10) == tuple(sorted(made, key=lambda task: task.task_id)[:10])
    queue.modify(claimant="a", delete=[task.ref for task in made])
    queue.close()


def test_limits_are_answered_as_what_they_are(served: ServedQueue) -> None:
    queue = open_queue(served.url)
    with pytest.raises(ValueError, match="at most 100000 bytes"):
        put(queue, Insert(queue="q", value="x" * 100_000))
    with pytest.raises(ValueError, match="larger than the queue's service takes"):
        put(queue, *(Insert(queue="q", value="x" * 90_000) for _ in range(50)))
    for _ in range(2):
        put(queue, *(Insert(queue="full") for _ in range(10_000)))
    with pytest.raises(QueueFull, match="queue full has 20000 tasks and may have 20000"):
        put(queue, Insert(queue="full"))
    task = queue.try_claim(["full"], claimant="a", lease=LEASE)
    assert task is not None
    queue.modify(claimant="a", delete=[task.ref])
    put(queue, Insert(queue="full"))
    queue.close()


def test_queues_are_named_by_any_character_but_nul(served: ServedQueue) -> None:
    by_class: dict[str, str] = {}
    for code in range(1, sys.maxunicode + 1):
        by_class.setdefault(unicodedata.category(chr(code)), chr(code))
    surrogate = by_class.pop("Cs")
    queue = open_queue(served.url)
    names = sorted([*by_class.values(), "".join(by_class.values())])
    put(queue, *(Insert(queue=name, value=name) for name in names))
    assert [row.queue for row in queue.queue_stats()] == names
    for name in names:
        task = queue.try_claim([name], claimant=name, lease=LEASE)
        assert task is not None
        assert (task.queue, task.value, task.claimant) == (name, name, name)
    with pytest.raises(ValueError, match="queue's name"):
        put(queue, Insert(queue=surrogate))
    queue.close()


def test_on_a_full_disk_the_service_refuses_modifies_and_goes_on_reading(tmp_path: Path) -> None:
    full = False

    def write(descriptor: int, content: bytes, offset: int) -> int:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(descriptor, content, offset)

    served = ServedQueue(tmp_path / "queue", disk=Disk(write=write))
    queue = open_queue(served.url)
    kept = put(queue, Insert(queue="q", value=1))
    full = True
    with pytest.raises(QueueFull, match="No space left on device; nothing was done"):
        put(queue, Insert(queue="q", value=2))
    with pytest.raises(QueueFull):
        queue.try_claim(["q"], claimant="a", lease=LEASE)
    assert queue.tasks("q") == kept
    assert queue.queue_stats()[0].available == 1
    full = False
    assert queue.try_claim(["q"], claimant="a", lease=LEASE) is not None
    queue.close()
    served.stop()


def test_the_command_looks_into_a_service_and_has_it_take_a_snapshot(served: ServedQueue) -> None:
    queue = open_queue(served.url)
    put(queue, Insert(queue="a/1", value="x"), Insert(queue="b", sequence=7))
    queue.close()

    def command(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "airflow_parallel_apply.queue", *arguments, "--dsn", served.url],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert [row["queue"] for row in json.loads(command("stats", "--prefix", "a/", "--json"))] == ["a/1"]
    assert [row["sequence"] for row in json.loads(command("tasks", "b", "--json"))] == [7]
    name = command("snapshot").strip()
    assert (served.serving.data / name).exists()


def test_a_service_that_is_not_there_is_unavailable_when_the_deadline_is_over() -> None:
    queue = QueueClient("grpc://127.0.0.1:1", deadline=timedelta(milliseconds=500))
    for call in (
        queue.queue_stats,
        lambda: put(queue, Insert(queue="q")),
        lambda: queue.claim(["q"], claimant="a", lease=LEASE, timeout=timedelta(milliseconds=100)),
    ):
        with pytest.raises(QueueUnavailable, match=r"127\.0\.0\.1:1 cannot be reached"):
            call()
    queue.close()


@pytest.mark.parametrize(
    "url", ["grpc://", "grpc://host", "grpc://host:x", "grpcs://h:1/path", "grpc://h:1?ca=x", "grpcs://h:1?secret=1"]
)
def test_an_address_that_is_none_is_refused_without_its_token(url: str) -> None:
    with pytest.raises(QueueMisconfigured, match="Hint") as refused:
        open_queue(url.replace("://", "://:hush@"))
    assert "hush" not in str(refused.value)
