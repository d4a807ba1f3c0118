"""The router's service as a process: whom it lets in, what it streams, how it stops and how it is killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from airflow_parallel_apply.pipeline.errors import ConfigurationError, LogError, Unavailable
from airflow_parallel_apply.pipeline.log import open_reader
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.log.writing import create_log, open_writer
from airflow_parallel_apply.pipeline.model.change import LAST_SEQNO
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.stream.address import router_address
from airflow_parallel_apply.pipeline.stream.client import StreamClient
from airflow_parallel_apply.pipeline.stream.ticket import Ticket
from airflow_parallel_apply.router.commands import app
from airflow_parallel_apply.router.service.limits import RouterLimits
from tests.log_batches import IDENTITY, random_history
from tests.support.queue_service import make_certificate, until
from tests.support.routers import RouterCommand, served_logs
from tests.support.variants import gated
from tests.support.written_log import Change, append, make_log

NO_PATIENCE = timedelta(0)
ALL = Ticket(log="orders", after_seqno=-1, last_seqno=LAST_SEQNO)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`orders`, 500 rows; `big`, about 30 MB of rows in Arrow."""
    directory = tmp_path_factory.mktemp("router") / "logs"
    url = str(directory / "orders")
    make_log(url)
    chosen = random.Random(3)
    append(url, 0, [[Change("U", chosen.randrange(99), "v") for _ in range(5)] for _ in range(100)])
    create_log(str(directory / "big"), IDENTITY)
    writer = open_writer(str(directory / "big"))
    writer.append(*random_history(60_000, seed=1))
    writer.commit(1)
    return directory


@pytest.fixture
def start(logs: Path) -> Iterator[Callable[..., RouterCommand]]:
    started: list[RouterCommand] = []

    def start_one(*arguments: str, **options: Any) -> RouterCommand:
        started.append(RouterCommand(logs, *arguments, **options))
        return started[-1]

    yield start_one
    for one in started:
        one.process.kill()
        one.process.communicate()


def client(url: str, patience: timedelta = NO_PATIENCE) -> StreamClient:
    return StreamClient(router_address(url), patience=patience)


def table(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches, schema=ROWS)


def ordered(rows: pa.Table) -> pa.Table:
    return rows.sort_by([("seqno", "ascending"), ("fragno", "ascending")])


def test_a_router_streams_each_channel_tells_its_health_and_metrics_and_drains_at_sigterm(
    logs: Path, start: Callable[..., RouterCommand]
) -> None:
    router = start("--metrics", "127.0.0.1:0")
    asked = client(router.url)
    routing = Routing(channels=3)
    tickets = [Ticket(log="orders", after_seqno=9, last_seqno=79, routing=routing, channel=each) for each in range(3)]
    with ThreadPoolExecutor(3) as pool:
        shares = list(pool.map(lambda ticket: table(asked.stream(ticket)), tickets))
    expected = pa.Table.from_batches(open_reader(str(logs / "orders")).rows(9, 79, in_order=True), schema=ROWS)
    assert ordered(pa.concat_tables(shares)).equals(ordered(expected))
    health = subprocess.run(
        [sys.executable, "-m", "airflow_parallel_apply.router", "health", router.url],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(health.stdout) == asked.call("health", {})
    assert asked.call("health", {})["logs"] == ["big", "orders"]

    def metrics() -> str:
        address = f"http://127.0.0.1:{router.ready['metrics_port']}/metrics"
        return str(urllib.request.urlopen(address, timeout=180).read().decode())

    # A stream is counted behind its last rows.
    until(lambda: 'router_streams_total{code="OK",from="log",kind="rows"} 3.0' in metrics())
    assert f'router_rows_total{{from="log"}} {expected.num_rows}.0' in metrics()
    assert "router_memory_bytes 0.0" in metrics()

    # A stream under way ends whole; one that comes later is sent away.
    slow = asked.stream(Ticket(log="big", after_seqno=-1, last_seqno=LAST_SEQNO))
    rows = next(slow).num_rows
    router.process.send_signal(signal.SIGTERM)
    until(lambda: asked.call("health", {})["status"] == "stopping")
    with pytest.raises(Unavailable, match="stopping"):
        next(client(router.url).stream(ALL))
    rows += sum(batch.num_rows for batch in slow)
    assert rows == 240_000
    assert router.process.wait(180) == 0
    assert not router.ready_file.exists()
    with pytest.raises(Unavailable, match=r"cannot be reached.*router serve"):
        client(router.url).call("health", {})


@gated
def test_a_killed_router_costs_the_hasty_a_stream_and_the_patient_time(
    start: Callable[..., RouterCommand],
) -> None:
    router = start()
    ticket = Ticket(log="big", after_seqno=-1, last_seqno=LAST_SEQNO, routing=Routing(channels=2), channel=1)
    whole = table(client(router.url).stream(ticket))
    hasty, patient = client(router.url).stream(ticket), client(router.url, timedelta(seconds=180)).stream(ticket)
    next(hasty)
    begun = next(patient)
    router.end(signal.SIGKILL)
    with pytest.raises(Unavailable, match="cannot be reached"):
        list(hasty)
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(list, patient)
        router.start()
        assert table(iter([begun, *rest.result(180)])).equals(whole)


@gated
def test_a_stream_that_comes_otherwise_after_a_break_has_failed(
    logs: Path, start: Callable[..., RouterCommand]
) -> None:
    router = start()
    begun = client(router.url, timedelta(seconds=180)).stream(Ticket(log="big", after_seqno=-1, last_seqno=LAST_SEQNO))
    next(begun)
    router.end(signal.SIGKILL)
    limits = RouterLimits(batch_bytes=10_000)
    with served_logs(logs, listen=str(router.ready["address"]), limits=limits):  # noqa: SIM117
        with pytest.raises(Unavailable, match="comes otherwise now"):
            list(begun)


@gated
def test_a_token_is_asked_for_and_tls_keeps_it_from_the_network(
    tmp_path: Path, start: Callable[..., RouterCommand]
) -> None:
    certificate, key = make_certificate(tmp_path)
    token_file = tmp_path / "token"
    token_file.write_text("a token\n")
    router = start("--tls-cert", str(certificate), "--tls-key", str(key), "--token-file", str(token_file))
    port = router.url.rpartition(":")[2]
    url = f"grpcs://:a%20token@localhost:{port}?ca={certificate}"
    assert table(client(url).stream(ALL)).num_rows == 500
    for refused in (url.replace("a%20token", "another"), url.replace(":a%20token@", "")):
        for call in (lambda asked: next(asked.stream(ALL)), lambda asked: asked.call("health", {})):
            with pytest.raises(ConfigurationError, match="refuses this caller") as error:
                call(client(refused))
            assert "token" not in str(error.value).partition("Hint")[0]
    with pytest.raises(Unavailable):
        client(f"grpcs://:a%20token@localhost:{port}").call("health", {})
    with pytest.raises(ConfigurationError, match="cannot be read"):
        client(f"grpcs://:a%20token@localhost:{port}?ca={tmp_path}/none.pem").call("health", {})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no log is named"),
        (("--log", "orders"), "NAME=DIRECTORY"),
        (("--logs", ".", "--listen", "0.0.0.0:0"), "needs TLS and a token"),
        (("--logs", ".", "--metrics", "0.0.0.0:0"), "needs TLS and a token"),
        (("--logs", ".", "--token-file", "/nowhere"), "the token cannot be read"),
        (("--logs", ".", "--tls-cert", __file__, "--tls-key", __file__), f"the certificate {__file__} with the key"),
    ],
)
def test_serve_refuses_what_would_be_open_or_empty(arguments: tuple[str, ...], words: str) -> None:
    before = _signals()
    done = CliRunner().invoke(app, ["serve", *arguments])
    assert (done.exit_code, words in done.stderr) == (1, True), done.stderr
    assert _signals() == before


def test_errors_of_the_log_reach_the_caller_whole(tmp_path: Path) -> None:
    url, damaged = str(tmp_path / "logs" / "orders"), str(tmp_path / "logs" / "damaged")
    make_log(damaged)
    append(damaged, 0, [[Change("I", 1, "v")]])
    make_log(url)
    for part in range(3):
        append(url, part * 2, [[Change("I", part, "v")], [Change("D", part)]])
    with served_logs(tmp_path / "logs") as router:
        asked = client(router)
        assert table(asked.stream(ALL)).num_rows == 6
        open_writer(url).purge(1)
        with pytest.raises(LogError, match="seqnos 0 to 1 were purged") as purged:
            next(asked.stream(ALL))
        assert purged.value.seqno == -1
        assert purged.value.hint is not None
        with pytest.raises(LogError, match="log other is asked for"):
            next(asked.stream(Ticket(log="orders", log_id="other", after_seqno=1, last_seqno=2)))
        with pytest.raises(ConfigurationError, match="serves no log"):
            next(asked.stream(Ticket(log="../orders", after_seqno=1, last_seqno=2)))
        with pytest.raises(ConfigurationError, match="not a ticket"):
            next(asked.stream(b"{}"))
        for call, body in (("nothing", {}), ("manifests", {}), ("identity", {"log": 7})):
            with pytest.raises(ConfigurationError, match="same release"):
                asked.call(call, body)
        (path,) = (Path(damaged) / "segments").glob("*.rows.parquet")
        path.write_bytes(path.read_bytes()[:-9] + b"otherwise")
        with pytest.raises(LogError, match="does not match its checksum"):
            next(asked.stream(Ticket(log="damaged", after_seqno=-1, last_seqno=0)))


def test_streams_beyond_the_limit_wait_and_are_then_sent_away(logs: Path) -> None:
    limits = RouterLimits(max_streams=1, max_wait=timedelta(seconds=0.1), batch_bytes=10_000)
    with served_logs(logs, limits=limits) as router:
        first = client(router).stream(Ticket(log="big", after_seqno=-1, last_seqno=LAST_SEQNO))
        next(first)
        with pytest.raises(Unavailable, match=r"1 streams are under way.*--max-streams"):
            next(client(router).stream(ALL))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(lambda: table(client(router, timedelta(seconds=180)).stream(ALL)))
            # Whoever leaves a stream gives its place back.
            first.close()
            assert waiting.result(180).num_rows == 500


def _signals() -> tuple[object, ...]:
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    return wakeup, signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
