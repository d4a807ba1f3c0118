"""The part of the service that is injected: what holds rows, and answers tickets before the log is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from airflow_parallel_apply.pipeline.store.protocol import StoreStats
from airflow_parallel_apply.pipeline.stream.ticket import Ticket

Action: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
"""A small call: JSON in, JSON out. Errors of ours reach the caller whole."""


@dataclass(frozen=True, slots=True)
class HeldPipeline:
    """A pipeline whose rows are held. `log`: its name at the router. `routing`: a digest."""

    log: str
    pipeline: str
    routing: str


class Answerer(Protocol):
    """Holds rows of some pipelines. Thread-safe: each stream and each call has a thread of its own."""

    @property
    def actions(self) -> Mapping[str, Action]:
        """The calls that it takes, by name."""
        ...

    def answer(self, ticket: Ticket) -> Iterator[pa.RecordBatch] | None:
        """The rows of a ticket, as the log would give them; None where it does not hold all of them: then the log is
        read. `RetryableError` while the rows are given: the caller asks again, and is answered from the log.
        """
        ...

    def stats(self) -> Mapping[str, float]:
        """Numbers for the metrics, by name."""
        ...

    def channels(self) -> Mapping[HeldPipeline, Sequence[StoreStats]]:
        """The same by pipeline and channel."""
        ...

    def close(self) -> None:
        """Release every waiter, and all that is held."""
        ...
