"""`serve`: a data directory behind gRPC, from start to SIGTERM.

Beyond loopback it listens only with TLS and a token. It ends in order: health says so, those who wait are sent away,
calls under way end, the log is made durable.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
from prometheus_client import CollectorRegistry

from airflow_parallel_apply.queue.memory import DataDirectory, DataLimits
from airflow_parallel_apply.queue.model import QueueMisconfigured
from airflow_parallel_apply.queue.service.limits import ServiceLimits
from airflow_parallel_apply.queue.service.metrics import CallMetrics, DataCollector
from airflow_parallel_apply.queue.service.server import Service
from airflow_parallel_apply.service.address import join_address, split_address
from airflow_parallel_apply.service.listening import Listening
from airflow_parallel_apply.service.metrics import MetricsServer, new_registry, serve_metrics

_GRACE_SECONDS: Final = 15.0
"""For calls under way when the service stops; none of them waits any more."""

_ANSWER_SECONDS: Final = 1.0
"""For the last answers to leave once no call is under way. A connection that says nothing would hold up gRPC's own end
for the whole of the grace.
"""

_SWITCH_SECONDS: Final = 0.0005
"""How long a thread that lists or takes a snapshot may hold up the event loop: a tenth of Python's own interval, which
every call would wait for two or three times over.
"""

_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving(Listening):
    """A data directory, where it is served, and within which limits. Errors: those of `Listening`."""

    data: Path
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    data_limits: DataLimits = field(default_factory=DataLimits)


async def serve(serving: Serving) -> None:
    """Serve until SIGTERM or SIGINT. Errors: `QueueMisconfigured`, `QueueCorrupt`; nothing is served then."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    # In a thread: recovery may take a while, and a signal meanwhile ends the process by itself.
    data = await asyncio.to_thread(_opened, serving)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await serve_data(serving, data, stop, lambda ready: _say_ready(serving, ready))
    finally:
        await asyncio.to_thread(data.close)


async def serve_data(
    serving: Serving, data: DataDirectory, stop: asyncio.Event, on_ready: Callable[[dict[str, object]], None]
) -> None:
    """Serve what is open, until `stop`; tell where, once it is so."""
    registry = new_registry()
    registry.register(DataCollector(data))
    service = Service(data, limits=serving.limits, token=serving.token, metrics=CallMetrics(registry))
    server = grpc.aio.server(options=_options(serving.limits))
    service.add_to(server)
    address = _bind(server, serving)
    metrics = _metrics(serving, registry)
    try:
        await server.start()
        await service.ready()
        on_ready(
            {
                "address": address,
                "url": f"{serving.scheme}://{address}",
                "pid": os.getpid(),
                "metrics_port": None if metrics is None else metrics.port,
            }
        )
        await stop.wait()
        await service.stop()
        ending = asyncio.ensure_future(server.stop(_GRACE_SECONDS))
        with suppress(TimeoutError):
            await asyncio.wait_for(service.idle(), _GRACE_SECONDS)
        await server.stop(_ANSWER_SECONDS)
        await ending
    finally:
        if metrics is not None:
            await asyncio.to_thread(metrics.close)
        serving.say_ended()


def _opened(serving: Serving) -> DataDirectory:
    """Recovery makes objects by the million and no garbage, and this process lives for its queues: looking for garbage
    among them takes a third of a recovery's time, and later on stops everything for most of a second a million tasks.
    So it is not done meanwhile, nor ever again among what was recovered; what is deleted of it is freed all the same.
    """
    gc.disable()
    try:
        return DataDirectory(serving.data, limits=serving.data_limits)
    finally:
        gc.freeze()
        gc.enable()


def _options(limits: ServiceLimits) -> list[tuple[str, int]]:
    return [
        # A page of a listing and a reply to a modify are larger than what they answer.
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Two services on one port would each get some of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ]


def _bind(server: grpc.aio.Server, serving: Serving) -> str:
    host, _ = split_address(serving.listen)
    serving.tls_context()
    try:
        if serving.tls_certificate is not None and serving.tls_key is not None:
            pair = (serving.tls_key.read_bytes(), serving.tls_certificate.read_bytes())
            authority = None if serving.tls_client_ca is None else serving.tls_client_ca.read_bytes()
            credentials = grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)
            port = server.add_secure_port(serving.listen, credentials)
        else:
            port = server.add_insecure_port(serving.listen)
    except (OSError, RuntimeError) as error:
        raise QueueMisconfigured(f"the queue's service cannot listen on {serving.listen}: {error}") from error
    return join_address(host, port)


def _metrics(serving: Serving, registry: CollectorRegistry) -> MetricsServer | None:
    try:
        return serve_metrics(registry, serving)
    except OSError as error:
        raise QueueMisconfigured(f"metrics cannot listen on {serving.metrics_listen}: {error}") from error


def _say_ready(serving: Serving, ready: dict[str, object]) -> None:
    _logger.info("serving %s on %s", serving.data, ready["address"])
    serving.say_ready(ready)
