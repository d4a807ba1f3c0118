"""Spark reads what a router streams: the rows that the log has, each ticket by a task of its own."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.errors import ConfigurationError, LogError, Unavailable
from airflow_parallel_apply.pipeline.log import open_reader
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.stream.ticket import Ticket
from airflow_parallel_apply.spark.faults import spark_errors
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import close_session, open_session, register_source
from airflow_parallel_apply.spark.stream_source import StreamDataSource, stream_rows
from tests.support.routers import served_logs
from tests.support.tpcb_log import make_tpcb_log
from tests.support.variants import gated

TRANSACTIONS = 300
TOKEN = "a token that nobody may see"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("streamed") / "logs"
    directory.mkdir()
    make_tpcb_log(str(directory / "orders"), TRANSACTIONS)
    return directory


@pytest.fixture(scope="module")
def session(spark_server: ServerLease) -> Iterator[Any]:
    session = open_session(spark_server.url, str(uuid.uuid4()))
    yield session
    close_session(session)


def with_token(url: str) -> str:
    return url.replace("://", f"://:{TOKEN.replace(' ', '%20')}@")


@gated
def test_each_ticket_is_a_partition_and_together_they_are_the_rows_of_the_log(session, logs: Path):
    routing = Routing(channels=3)
    tickets = [
        Ticket(log="orders", after_seqno=9, last_seqno=249, routing=routing, channel=channel).to_bytes()
        for channel in range(3)
    ]
    with served_logs(logs, token=TOKEN) as url:
        frame = stream_rows(session, with_token(url), tickets)
        assert TOKEN not in frame._explain_string(extended=True)
        rows = frame.toArrow().cast(ROWS)
        parts = frame.selectExpr("spark_partition_id() part").distinct().count()
        with pytest.raises(ConfigurationError, match="refuses this caller"), spark_errors("stream"):
            stream_rows(session, url, tickets).toArrow()
    expected = pa.Table.from_batches(open_reader(str(logs / "orders")).rows(9, 249), schema=ROWS)
    order = [("seqno", "ascending"), ("fragno", "ascending")]
    assert rows.sort_by(order).equals(expected.sort_by(order))
    assert parts == 3


def test_clients_of_a_session_may_register_at_the_same_time(spark_server: ServerLease):
    clients = 6

    def register(session_id: str, together: threading.Barrier) -> None:
        client = open_session(spark_server.url, session_id)
        try:
            together.wait(timeout=180)
            for _ in range(3):
                register_source(client, StreamDataSource)
        finally:
            close_session(client)

    with ThreadPoolExecutor(clients) as pool:
        for _ in range(3):
            session_id, together = str(uuid.uuid4()), threading.Barrier(clients)
            for registered in [pool.submit(register, session_id, together) for _ in range(clients)]:
                registered.result()


@gated
def test_what_the_router_refuses_and_a_router_that_is_away_are_told_by_their_errors(session, logs: Path):
    other = Ticket(log="orders", log_id="another", after_seqno=-1, last_seqno=9).to_bytes()

    def read(url: str) -> None:
        with spark_errors("stage"):
            stream_rows(session, url, [other]).toArrow()

    with served_logs(logs) as url, pytest.raises(LogError, match="log another is asked for") as refused:
        read(url)
    assert refused.value.hint is not None
    with pytest.raises(Unavailable, match=rf"the router at {url} cannot be reached.*router serve"):
        read(url)
