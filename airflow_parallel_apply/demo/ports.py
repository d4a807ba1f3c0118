"""Ports for servers that are told one, and keep it while they are down."""

from __future__ import annotations

import random
import socket
from contextlib import closing
from typing import Final

from airflow_parallel_apply.pipeline.errors import Unavailable

_PORTS: Final = range(15_000, 32_000)
"""Below those that systems give to outgoing connections: one of these could have the port of a server that restarts,
and two servers that are made at once could be given the same one.
"""
_TRIES: Final = 200


def free_port() -> int:
    """A port on loopback that nobody listens at. Errors: `Unavailable`."""
    # Not the generator that a test may have seeded: processes that begin at once would all draw the same.
    for port in random.SystemRandom().sample(_PORTS, _TRIES):
        with closing(socket.socket()) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise Unavailable(f"no free port was found among {_TRIES} of {_PORTS.start} to {_PORTS.stop - 1}", op="server")
