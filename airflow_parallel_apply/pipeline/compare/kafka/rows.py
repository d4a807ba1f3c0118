"""A feed's rows for a comparison: what each table has after all changes that are committed in its topic."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.compare.kafka.folding import FeedChange, Fold, Order
from airflow_parallel_apply.pipeline.compare.kafka.forms import Sent, form_of
from airflow_parallel_apply.pipeline.compare.kafka.reading import Received, TopicReader
from airflow_parallel_apply.pipeline.compare.protocol import ComparedRows, SourceTable, TableRefused
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.encode.columns.rows import READ
from airflow_parallel_apply.pipeline.model.value_type import OPAQUE
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress

_BATCH_ROWS: Final = 20_000


class KafkaRows:
    """See `ComparedRows`. Memory: the rows of the table that is read, and a place for each key that ever was."""

    def __init__(self, name: str, address: KafkaAddress) -> None:
        self.name = name
        self._address = address
        self._form = form_of(address)
        self._reader = TopicReader(address)

    def tables(self) -> list[SourceTable]:
        raise NotImplementedError("a feed is no source")

    def having(self, table: SourceTable) -> SourceTable:
        """A feed computes nothing: a column that the source computes, and does not send, is missed by nobody."""
        return table.with_generated(())

    def batches(self, table: SourceTable) -> Iterator[pa.RecordBatch]:
        fold = self._folded(table)
        if fold.missed:
            # Keys changed while a column was not sent. Which rows hold its values is known from here on.
            fold = self._folded(table, wanted=fold.missed)
        rows = fold.rows()
        while batch := list(islice(rows, _BATCH_ROWS)):
            columns = zip(*batch, strict=True)
            yield pa.RecordBatch.from_arrays(
                [self._column(table, name, list(values)) for name, values in zip(table.columns, columns, strict=True)],
                names=table.columns,
            )

    def cancel(self) -> None:
        self._reader.cancel()

    def _folded(self, table: SourceTable, *, wanted: Collection[Order] = ()) -> Fold:
        fold = Fold(wanted=wanted)
        for received in self._reader.messages(self._address.topic(table.name)):
            fold.add(self._change(received, table.columns))
        return fold

    def _change(self, received: Received, columns: list[str]) -> FeedChange:
        values: list[Any] | None = None
        unsent: frozenset[int] = frozenset()
        is_row = received.operation in ("insert", "update", READ) or received.key is None
        if is_row and received.operation != "truncate" and received.value is not None:
            sent = self._sent(received, received.value)
            # A column that came later is in no older message.
            values = [sent.values.get(name) for name in columns]
            unsent = frozenset(columns.index(name) for name in sent.unsent if name in columns)
        return FeedChange(
            order=received.order,
            operation=received.operation,
            partition=received.partition,
            key=received.key,
            values=values,
            unsent=unsent,
        )

    def _sent(self, received: Received, value: bytes) -> Sent:
        try:
            return self._form.sent(value)
        except (TypeError, ValueError, LookupError, EOFError) as error:
            raise TableRefused(
                f"the message of seqno {received.order[0]} is not of the form {self._address.format}: {error}"
            ) from error

    def _column(self, table: SourceTable, name: str, values: list[Any]) -> pa.Array:
        try:
            return self._form.column(values, table.values.get(name, OPAQUE))
        except (TypeError, ValueError, pa.ArrowException) as error:
            raise TableRefused(f"messages have values of {name} that its type does not have now: {error}") from error


@contextmanager
def open_kafka_rows(endpoint: Endpoint, name: str) -> Iterator[ComparedRows]:
    """Rows of what is committed when a table is read. Errors: `ConfigurationError` for an address that is none."""
    yield KafkaRows(name, KafkaAddress.parse(endpoint))
