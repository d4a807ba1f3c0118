"""Options with which both clients connect: a lost service is looked for again soon, a silent one is noticed."""

from __future__ import annotations

from typing import Final

import grpc

from airflow_parallel_apply.queue.model import QueueMisconfigured
from airflow_parallel_apply.service.address import ServiceAddress

CHANNEL_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # A listing's page is about a megabyte; a reply to a modify as large as what was asked, and the service bounds that.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Each client has a connection of its own, so closing one does not depend on another.
    ("grpc.use_local_subchannel_pool", 1),
)


def credentials_of(address: ServiceAddress) -> grpc.ChannelCredentials:
    """The channel credentials for an address with TLS. Errors: `QueueMisconfigured`."""
    try:
        return grpc.ssl_channel_credentials(*address.certificates())
    except OSError as error:
        raise QueueMisconfigured(f"a certificate for the queue's service cannot be read: {error}") from error
