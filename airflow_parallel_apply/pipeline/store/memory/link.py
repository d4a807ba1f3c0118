"""The way from a pipeline's process to the router that holds its rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, Final

from airflow_parallel_apply.pipeline.config import RouterEndpoint
from airflow_parallel_apply.pipeline.embedded.layout import HostLayout, host_directory
from airflow_parallel_apply.pipeline.embedded.lease import join_server
from airflow_parallel_apply.pipeline.errors import ParallelApplyError, Unavailable
from airflow_parallel_apply.pipeline.stream.address import router_address
from airflow_parallel_apply.pipeline.stream.client import StreamClient

_PATIENCE: Final = timedelta(seconds=1)
"""The log serves as well, so nobody waits for a router."""
_AWAY_SECONDS: Final = 10.0


class RouterLink:
    """The link to the router of a connection, or to the embedded one of the host while it runs. Where the router does
    not answer, `call` returns None, and `failure` says why. Threads may share one.
    """

    def __init__(self, router: RouterEndpoint | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._router = router
        self._clock = clock
        self._lock = threading.Lock()
        self._leases = ExitStack()
        self._client: StreamClient | None = None
        self._url = ""
        self._away_until = float("-inf")
        self.failure = ""
        """Why the log serves; empty while the router does."""

    @property
    def url(self) -> str:
        """The router's URL with its token; empty before the first call that it answered."""
        return self._url

    @property
    def place(self) -> str:
        """The router's address, for people."""
        return "" if self._client is None else self._client.place

    def call(self, action: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Ask the router; None where it does not answer, or answers with an error."""
        if self._clock() < self._away_until:
            return None
        try:
            answer = self._connected().call(action, body)
        except ParallelApplyError as error:
            self._let_go(error)
            return None
        self.failure = ""
        return answer

    def close(self) -> None:
        """Let the router go: the embedded one ends when nobody holds it. Idempotent."""
        with self._lock:
            client, self._client = self._client, None
            if client is not None:
                client.close()
            self._leases.close()

    def _connected(self) -> StreamClient:
        with self._lock:
            if self._client is None:
                self._url = self._router.url if self._router is not None else self._embedded_url()
                self._client = StreamClient(router_address(self._url), patience=_PATIENCE)
            return self._client

    def _embedded_url(self) -> str:
        state = self._leases.enter_context(join_server(router_layout()))
        if state is None:
            self._leases.close()
            raise Unavailable("no router runs on this host", hint="The task route starts one on its own host.")
        return str(state["url"])

    def _let_go(self, error: ParallelApplyError) -> None:
        self.failure = str(error)
        self._away_until = self._clock() + _AWAY_SECONDS
        self.close()


def router_layout() -> HostLayout:
    """The files of the embedded router of this user and installation. Errors: `ConfigurationError`."""
    return HostLayout(directory=host_directory("router"))
