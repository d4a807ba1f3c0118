"""`parallel_apply_stream`: rows that a router streams, as a DataFrame; each of its tasks reads one ticket.

Arrow batches go from the router through Spark's Python worker into the JVM; Python sees no row. The client goes on
with a stream that broke; where it cannot, the task fails: Spark retries it, or the lane its unit, and the same ticket
brings the same rows.

Options: `address` (grpc:// or grpcs://, without a token), `token` (Spark leaves options of this name out of what it
shows), `tickets` (a JSON list of base64).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.stream.address import router_address
from airflow_parallel_apply.pipeline.stream.client import StreamClient
from airflow_parallel_apply.service.address import ServiceAddress
from airflow_parallel_apply.spark.faults import WorkerError
from airflow_parallel_apply.spark.schemas import LOG_SCHEMA
from airflow_parallel_apply.spark.session import register_source
from airflow_parallel_apply.spark.worker import die_with_parent

NAME: Final = "parallel_apply_stream"
_KEPT_CLIENTS: Final = 4
_PATIENCE: Final = timedelta(seconds=2)
"""Short: Spark tries its task again, then the lane its unit, and both say so."""


def stream_rows(session: Any, address: str, tickets: Sequence[bytes]) -> Any:
    """The rows of some tickets, one partition each. `address`: of the router, with its token."""
    router = router_address(address)
    register_source(session, StreamDataSource)
    options = {
        "address": router.url(with_token=False),
        "token": router.token or "",
        "tickets": json.dumps([base64.b64encode(ticket).decode() for ticket in tickets]),
    }
    return session.read.format(NAME).schema(LOG_SCHEMA).options(**options).load()


def pull(address: ServiceAddress, ticket: bytes) -> Iterator[pa.RecordBatch]:
    """The batches of a ticket, inside a worker of Spark's. Errors: `WorkerError`."""
    die_with_parent()
    try:
        for batch in _client(address).stream(ticket):
            # Spark takes no column for one that may not be null.
            yield pa.record_batch(batch.columns, names=batch.schema.names)
    except ParallelApplyError as error:
        raise WorkerError.holding(error) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPartition(InputPartition):  # type: ignore[misc]
    """One ticket, read by one task."""

    ticket: bytes


class StreamDataSource(DataSource):  # type: ignore[misc]
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return LOG_SCHEMA

    def reader(self, schema: Any) -> StreamReader:
        del schema
        router = replace(router_address(self.options["address"]), token=self.options.get("token") or None)
        return StreamReader(router, [base64.b64decode(text) for text in json.loads(self.options["tickets"])])


class StreamReader(DataSourceReader):  # type: ignore[misc]
    """Plans one task a ticket."""

    def __init__(self, router: ServiceAddress, tickets: Sequence[bytes]) -> None:
        self._router = router
        self._tickets = tickets

    def partitions(self) -> Sequence[InputPartition]:
        return [StreamPartition(ticket=ticket) for ticket in self._tickets]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, StreamPartition):
            yield from pull(self._router, partition.ticket)


@lru_cache(maxsize=_KEPT_CLIENTS)
def _client(address: ServiceAddress) -> StreamClient:
    """Kept for the next task of this worker: to connect anew takes as long as a small unit."""
    return StreamClient(address, patience=_PATIENCE)
