"""Reads a log that a router serves: `RemoteLogReader`.

What tells of the log, its identity and manifests, comes as the files are, with their checksums; rows and transactions
come as streams. The router compares the checksums of segments, before it first reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.identity import identity_from
from airflow_parallel_apply.pipeline.log.manifest import EMPTY_VIEW
from airflow_parallel_apply.pipeline.log.manifest_file import advance_by
from airflow_parallel_apply.pipeline.log.protocol import LogIdentity, LogState, Segment
from airflow_parallel_apply.pipeline.log.schema import TRANSACTIONS
from airflow_parallel_apply.pipeline.stream.address import log_address
from airflow_parallel_apply.pipeline.stream.client import StreamClient
from airflow_parallel_apply.pipeline.stream.ticket import Ticket, TicketKind
from airflow_parallel_apply.service.address import ServiceAddress

FIRST_PATIENCE: Final = timedelta(seconds=5)
"""Before anything has begun, whoever asks would rather know soon."""


class RemoteLogReader:
    """Implements `LogReader`. Threads may share one. Errors of all methods: also `Unavailable`, where the router is
    away for longer than the client's patience, or in mid-stream.
    """

    def __init__(self, url: str) -> None:
        self._client = StreamClient(log_address(url))
        (content,) = self._client.call_for_bytes("identity", {"log": self._name})
        self._identity = identity_from(content, self._client.place)
        self._view = EMPTY_VIEW
        self.state()

    @property
    def identity(self) -> LogIdentity:
        return self._identity

    @property
    def root(self) -> None:
        return None

    @property
    def router(self) -> ServiceAddress:
        return self._client.address

    def state(self) -> LogState:
        """One call of the router, which answers with what is new."""
        view = self._view
        asked = {"log": self._name, "log_id": self._identity.log_id, "after_version": view.version}
        contents = self._client.call_for_bytes("manifests", asked)
        # Threads may come to the same view side by side.
        self._view = view = advance_by(view, contents, place=self._client.place)
        return view.state

    def verify(self, segments: Sequence[Segment]) -> None:
        """Nothing: the router has, or will when it reads them."""
        del segments

    def row_files(self, after_seqno: int, last_seqno: int) -> tuple[str, ...]:
        del after_seqno, last_seqno
        raise LogError(
            f"the files of the log at {self._client.place} are the router's, and cannot be read here",
            hint="Read its rows with a ticket, or give the log's directory.",
        )

    def transactions(self, after_seqno: int, last_seqno: int) -> pa.Table:
        ticket = self._ticket(after_seqno, last_seqno, kind=TicketKind.TRANSACTIONS)
        return pa.Table.from_batches(self._client.stream(ticket), schema=TRANSACTIONS)

    def rows(
        self,
        after_seqno: int,
        last_seqno: int,
        *,
        columns: Sequence[str] | None = None,
        in_order: bool = False,
        after_fragno: int | None = None,
        buckets: tuple[int, int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Memory: a batch or two."""
        ticket = self._ticket(
            after_seqno,
            last_seqno,
            columns=None if columns is None else tuple(columns),
            in_order=in_order,
            after_fragno=after_fragno,
            buckets=buckets,
        )
        yield from self._client.stream(ticket)

    @property
    def _name(self) -> str:
        return self._client.address.path

    def _ticket(self, after_seqno: int, last_seqno: int, **narrowing: object) -> Ticket:
        return Ticket(
            log=self._name,
            log_id=self._identity.log_id,
            after_seqno=after_seqno,
            last_seqno=last_seqno,
            **narrowing,  # type: ignore[arg-type]
        )


def router_serves(url: str) -> bool:
    """True if the router has a log of that name. Errors: `Unavailable`, `ConfigurationError`."""
    client = StreamClient(log_address(url), patience=FIRST_PATIENCE)
    return client.address.path in client.call("health", {})["logs"]
