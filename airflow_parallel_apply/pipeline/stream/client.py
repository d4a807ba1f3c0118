"""A client of one router: streams by ticket, small calls by name. Threads may share one.

A call that finds the router away is repeated for a while, with growing pauses. A stream that breaks is asked for again;
what the caller has of it is passed over as long as it comes as it came, and if it does not, the stream has failed.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.flight as flight
import xxhash
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from airflow_parallel_apply.pipeline.errors import ConfigurationError, Unavailable
from airflow_parallel_apply.pipeline.stream.faults import flight_errors
from airflow_parallel_apply.pipeline.stream.ticket import Ticket
from airflow_parallel_apply.service.address import ServiceAddress

PATIENCE: Final = timedelta(seconds=20)
"""How long a router that is away is asked again: it restarts within this."""
_CALL_SECONDS: Final = 60.0

_OPTIONS: Final = [
    # A router that vanished without a word is noticed, in mid-stream too. More often than once in five minutes a server
    # takes for an attack, and Flight's lets nobody say otherwise.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
]

Result = TypeVar("Result")


class StreamClient:
    """Connects at the first call. Errors of all calls: `Unavailable` where the router is away or has no room now,
    `ConfigurationError` where it refuses the caller, and what the router itself raised.
    """

    def __init__(self, address: ServiceAddress, *, patience: timedelta = PATIENCE) -> None:
        self.address = address
        self._patience = patience
        self._lock = threading.Lock()
        self._client: flight.FlightClient | None = None
        self._headers = [(name.encode(), value.encode()) for name, value in address.metadata]

    @property
    def place(self) -> str:
        """The router's address, for people."""
        return self.address.place

    def stream(self, ticket: Ticket | bytes) -> Iterator[pa.RecordBatch]:
        """The rows of a ticket. At most a few batches are on the way; whoever stops reading stops the router."""
        shown = ticket.to_bytes() if isinstance(ticket, Ticket) else ticket
        given: list[int] = []
        while True:
            known = len(given)
            try:
                for batch in self._behind(shown, tuple(given)):
                    given.append(_digest(batch))
                    yield batch
                return
            except Unavailable:
                # Without an end to it, a stream that breaks at the same place would be asked for for ever.
                if len(given) == known:
                    raise

    def _behind(self, shown: bytes, given: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """The batches of a ticket behind those that were given, by their digests. A router that merged segments
        meanwhile, or answers from another place, may cut them otherwise: then nothing tells where to go on.
        """
        for number, batch in enumerate(self._once(shown)):
            if number >= len(given):
                yield batch
            elif _digest(batch) != given[number]:
                raise Unavailable(
                    f"a stream of the router at {self.place} broke, and comes otherwise now",
                    op="stream",
                    hint="Whoever asked for it begins anew.",
                )

    def _once(self, shown: bytes) -> Iterator[pa.RecordBatch]:
        reader, first = self._repeated(lambda: self._begin(shown))
        try:
            while first is not None:
                yield first
                with flight_errors(self.place):
                    first = _next_batch(reader)
        finally:
            # Unless it is told the router goes on sending to a reader that is gone.
            with contextlib.suppress(flight.FlightError, pa.ArrowException, OSError):
                reader.cancel()

    def schema(self, ticket: Ticket) -> pa.Schema:
        """The schema that the batches of a ticket have."""
        reader, _ = self._repeated(lambda: self._begin(ticket.to_bytes(), with_batch=False))
        reader.cancel()
        return reader.schema

    def call(self, action: str, body: dict[str, Any]) -> dict[str, Any]:
        """A small call: JSON in, JSON out."""
        results = self._repeated(lambda: self._act(action, body))
        answer: dict[str, Any] = json.loads(results[0]) if results else {}
        return answer

    def call_for_bytes(self, action: str, body: dict[str, Any]) -> list[bytes]:
        """A call that answers with some contents."""
        return self._repeated(lambda: self._act(action, body))

    def close(self) -> None:
        """End the connection; a later call makes a new one."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _begin(self, shown: bytes, *, with_batch: bool = True) -> tuple[Any, pa.RecordBatch | None]:
        with flight_errors(self.place):
            reader = self._connected().do_get(flight.Ticket(shown), flight.FlightCallOptions(headers=self._headers))
            return reader, _next_batch(reader) if with_batch else None

    def _act(self, action: str, body: dict[str, Any]) -> list[bytes]:
        with flight_errors(self.place):
            options = flight.FlightCallOptions(headers=self._headers, timeout=_CALL_SECONDS)
            results = self._connected().do_action(flight.Action(action, json.dumps(body).encode()), options)
            return [result.body.to_pybytes() for result in results]

    def _repeated(self, call: Callable[[], Result]) -> Result:
        return Retrying(
            retry=retry_if_exception_type(Unavailable),
            stop=stop_after_delay(self._patience.total_seconds()),
            wait=wait_random_exponential(multiplier=0.05, max=1.0),
            reraise=True,
        )(call)

    def _connected(self) -> flight.FlightClient:
        with self._lock:
            if self._client is None:
                self._client = _connect(self.address)
            return self._client


def _connect(address: ServiceAddress) -> flight.FlightClient:
    options: dict[str, Any] = {"generic_options": _OPTIONS}
    if address.tls:
        try:
            authority, key, chain = address.certificates()
        except OSError as error:
            raise ConfigurationError(
                f"a certificate for the router at {address.place} cannot be read: {error}", op="stream"
            ) from error
        named = {"tls_root_certs": authority, "private_key": key, "cert_chain": chain}
        options |= {name: value for name, value in named.items() if value is not None}
    return flight.connect(f"{'grpc+tls' if address.tls else 'grpc+tcp'}://{address.target}", **options)


def _digest(batch: pa.RecordBatch) -> int:
    digest = xxhash.xxh3_64(str(batch.num_rows).encode())
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None:
                digest.update(memoryview(buffer))
    return digest.intdigest()


def _next_batch(reader: Any) -> pa.RecordBatch | None:
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return None
        if chunk.data is not None:
            return chunk.data
