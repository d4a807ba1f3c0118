"""Whom the queue's service lets in, and what the others are told."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_parallel_apply.queue import Insert, Queue, QueueMisconfigured, QueueUnavailable, open_queue
from airflow_parallel_apply.queue.client import QueueClient, calls
from airflow_parallel_apply.queue.service.process import Serving
from tests.support.queue_service import ServedQueue, make_certificate
from tests.support.variants import gated

TOKEN = "a token of ours"


def put(queue: Queue, *inserts: Insert) -> Any:
    return queue.modify(claimant="maker", insert=inserts)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("grpcs://localhost:{port}?ca={other}", r"CERTIFICATE_VERIFY_FAILED.* Hint: ca must name the authority"),
        ("grpcs://127.0.0.1:{port}?ca={cert}", r"Hint: Its certificate is for another host"),
        ("grpc://127.0.0.1:1", r"[Cc]onnection refused"),
        ("grpcs://no-such-host.invalid:7?ca={cert}", r"no-such-host"),
    ],
)
def test_who_gets_no_connection_is_told_why(
    certificate: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, told: str
) -> None:
    # A busy machine takes its time for a handshake.
    monkeypatch.setattr(calls, "_PROBE_SECONDS", 120.0)
    served = ServedQueue(
        tmp_path / "queue", listen="localhost:0", tls_certificate=certificate[0], tls_key=certificate[1]
    )
    port, other = served.url.rpartition(":")[2], make_certificate(tmp_path)[0]
    queue = QueueClient(address.format(port=port, cert=certificate[0], other=other), deadline=timedelta(seconds=4))
    with ThreadPoolExecutor(2) as pool:
        # Both last for as long as the deadline.
        for call in [pool.submit(queue.queue_stats), pool.submit(put, queue, Insert(queue="q"))]:
            with pytest.raises(QueueUnavailable, match=told):
                call.result()
    queue.close()
    served.stop()


@gated
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
    queue = QueueClient(address, deadline=timedelta(seconds=30 if shown else 2))
    asked = urllib.request.Request(
        f"https://localhost:{served.ready['metrics_port']}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    try:
        if shown:
            assert queue.queue_stats() == ()
            assert urllib.request.urlopen(asked, context=context, timeout=120).status == 200  # noqa: S310
        else:
            with pytest.raises(QueueUnavailable):
                queue.queue_stats()
            with pytest.raises(OSError, match=r"(?i)certificate|handshake|reset|closed|eof"):
                urllib.request.urlopen(asked, context=context, timeout=120)  # noqa: S310
    finally:
        queue.close()
        served.stop()


@gated
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
            urllib.request.urlopen(metrics_url, context=context, timeout=120)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        asked = urllib.request.Request(metrics_url, headers=headers)
        assert (
            b'queue_tasks{queue="q",state="available"} 1.0'
            in urllib.request.urlopen(asked, context=context, timeout=120).read()  # noqa: S310
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


@pytest.mark.parametrize(
    "url", ["grpc://", "grpc://host", "grpc://host:x", "grpcs://h:1/path", "grpc://h:1?ca=x", "grpcs://h:1?secret=1"]
)
def test_an_address_that_is_none_is_refused_without_its_token(url: str) -> None:
    with pytest.raises(QueueMisconfigured, match="Hint") as refused:
        open_queue(url.replace("://", "://:hush@"))
    assert "hush" not in str(refused.value)


def test_an_address_without_tls_is_for_the_own_host() -> None:
    """As in the connection's form; and the token is not repeated."""
    for url in ("grpc://:s3cret@queue.example:7411", "grpc://10.0.0.7:7411", "grpc://[2001:db8::1]:7411"):
        with pytest.raises(QueueMisconfigured, match="Write grpcs://") as refused:
            open_queue(url)
        assert "s3cret" not in str(refused.value)
