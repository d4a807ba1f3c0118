"""The Flight server: `DoGet` answers tickets, `DoAction` takes small calls.

| action | answer |
|---|---|
| health | {"status": "serving" or "stopping", "version", "logs", "streams"} |
| identity | content of the log's identity file |
| manifests | contents of the manifests behind a version; from the last checkpoint on where that is -1 |
| others | those of the answerer: what it holds is its own affair |
"""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as flight

from airflow_parallel_apply.pipeline.errors import (
    ConfigurationError,
    FatalError,
    LogError,
    ParallelApplyError,
    Unavailable,
)
from airflow_parallel_apply.pipeline.log.directory import sync_directory
from airflow_parallel_apply.pipeline.log.manifest_file import manifest_contents
from airflow_parallel_apply.pipeline.stream.faults import to_flight
from airflow_parallel_apply.pipeline.stream.ticket import Ticket
from airflow_parallel_apply.router.service.answers import from_log, schema_of
from airflow_parallel_apply.router.service.limits import Room, RouterLimits
from airflow_parallel_apply.router.service.logs import ServedLogs
from airflow_parallel_apply.router.service.metrics import RouterMetrics, StreamCount
from airflow_parallel_apply.router.service.protocol import Answerer

_PACKAGE: Final = "airflow-provider-parallel-apply"

_logger: Final = logging.getLogger(__name__)


class RouterServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves from its construction on, in threads of Flight's."""

    def __init__(
        self,
        logs: ServedLogs,
        location: str,
        *,
        limits: RouterLimits,
        metrics: RouterMetrics,
        answerer: Answerer | None = None,
        token: str | None = None,
        **tls: Any,
    ) -> None:
        self._logs = logs
        self._limits = limits
        self._metrics = metrics
        self._answerer = answerer
        self._places = Room(
            limits.max_streams,
            f"{limits.max_streams} streams are under way",
            "Raise --max-streams, or use fewer lanes.",
        )
        self.memory = Room(
            limits.memory_bytes,
            f"its streams hold {limits.memory_bytes / 2**20:,.0f} MB",
            "Raise --memory-mb, or use fewer lanes.",
        )
        self._is_stopping = False
        middleware = {} if token is None else {"token": _TokenFactory(token)}
        super().__init__(location, middleware=middleware, **tls)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        """Answer a ticket."""
        del context
        try:
            wanted = Ticket.from_bytes(ticket.ticket)
            return flight.GeneratorStream(schema_of(wanted), self._stream(wanted))
        except ParallelApplyError as error:
            raise to_flight(error) from error

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[bytes]:
        """Take a small call."""
        del context
        try:
            with self._metrics.call(action.type if action.type in self._action_names() else "unknown"):
                body = json.loads(action.body.to_pybytes() or b"{}")
                return iter(self._act(action.type, body))
        except ParallelApplyError as error:
            raise to_flight(error) from error
        except (KeyError, TypeError, ValueError) as error:
            raise to_flight(_refused(f"the call {action.type} is malformed: {error!r}")) from error

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        """Names of the calls."""
        del context
        return [(name, "JSON in, JSON or a file's content out") for name in self._action_names()]

    def drain(self) -> bool:
        """Take no more streams, and wait a while for those under way; then those that are left end at their next
        batch. True where none was cut off.
        """
        self._is_stopping = True
        is_empty = self._places.wait_empty(self._limits.drain)
        self._places.close()
        self.memory.close()
        if self._answerer is not None:
            self._answerer.close()
        return is_empty

    def _stream(self, ticket: Ticket) -> Iterator[pa.RecordBatch]:
        try:
            with self._metrics.stream(ticket.kind) as count:
                self._check_serving()
                with self._places.take(1, self._limits.max_wait):
                    for batch in self._batches(ticket, count):
                        count.add(batch)
                        yield batch
                        if self._places.is_closed:
                            self._check_serving()
                # Arrow keeps what it was given back, for what may come next.
                pa.default_memory_pool().release_unused()
        except ParallelApplyError as error:
            if isinstance(error, FatalError):
                _logger.warning("a ticket for log %s is refused: %s", ticket.log, error)
            raise to_flight(error) from error
        except (OSError, pa.ArrowException) as error:
            _logger.exception("log %s cannot be read", ticket.log)
            raise to_flight(LogError(f"the router cannot read log {ticket.log!r}: {error}", op="stream")) from error

    def _batches(self, ticket: Ticket, count: StreamCount) -> Iterator[pa.RecordBatch]:
        log = self._logs.reader(ticket.log, ticket.log_id)
        held = None if self._answerer is None else self._answerer.answer(ticket)
        if held is not None:
            count.origin = "router"
            return held
        return from_log(log, ticket, self.memory, self._limits)

    def _act(self, name: str, body: dict[str, Any]) -> list[bytes]:
        if self._answerer is not None and name in self._answerer.actions:
            return [json.dumps(self._answerer.actions[name](body)).encode()]
        match name:
            case "health":
                return [json.dumps(self._health()).encode()]
            case "identity":
                return [self._logs.directory(body["log"]).identity_path.read_bytes()]
            case "manifests":
                self._logs.reader(body["log"], body["log_id"])
                directory = self._logs.directory(body["log"])
                contents = manifest_contents(directory, after_version=int(body["after_version"]))
                if contents:
                    # Whoever is told of a version lets the source go by it, and may not lose it in a crash.
                    sync_directory(directory.manifests)
                return contents
        raise _refused(f"this router takes no call {name!r}")

    def _action_names(self) -> tuple[str, ...]:
        own = ("health", "identity", "manifests")
        return own if self._answerer is None else (*own, *self._answerer.actions)

    def _health(self) -> dict[str, object]:
        try:
            release = version(_PACKAGE)
        except PackageNotFoundError:
            release = ""
        return {
            "status": "stopping" if self._is_stopping else "serving",
            "version": release,
            "logs": list(self._logs.names()),
            "streams": self._places.taken,
        }

    def _check_serving(self) -> None:
        if self._is_stopping:
            raise Unavailable("the router is stopping", op="stream", hint="Ask again once it has restarted.")


class _TokenFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets nobody in without the token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._wanted = f"Bearer {token}".encode()

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        """Errors: Flight's own for a caller that is not known."""
        del info
        given = (headers.get("authorization") or [""])[0]
        if not hmac.compare_digest(str(given).encode(), self._wanted):
            raise flight.FlightUnauthenticatedError("a token is wanted")


def _refused(what: str) -> ConfigurationError:
    return ConfigurationError(
        what,
        op="stream",
        hint="The router and whoever asks it need the same release of airflow-provider-parallel-apply.",
    )
