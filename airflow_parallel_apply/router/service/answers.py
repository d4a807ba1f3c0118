"""Answers tickets from the log, segment after segment, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.log.options import memory_bytes
from airflow_parallel_apply.pipeline.log.protocol import LogReader, Segment
from airflow_parallel_apply.pipeline.log.schema import ROWS, STORED, TRANSACTIONS
from airflow_parallel_apply.pipeline.partition.channel import bucket_range
from airflow_parallel_apply.pipeline.partition.open import open_partitioner
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.stream.ticket import Ticket, TicketKind
from airflow_parallel_apply.router.service.limits import Room, RouterLimits

_WHOLE_SEGMENTS = 3
"""Copies of a segment's rows that putting them in order takes, as far as memory goes."""
_WHOLE_BATCHES = 4
"""Copies of a batch that lie between the log and the wire."""


def schema_of(ticket: Ticket) -> pa.Schema:
    """The schema of a ticket's batches. Errors: `ConfigurationError` for a column that no log has."""
    if ticket.kind is TicketKind.TRANSACTIONS:
        return TRANSACTIONS
    names = ROWS.names if ticket.columns is None else ticket.columns
    unknown = [name for name in names if name not in STORED.names]
    if unknown:
        raise ConfigurationError(f"a log's rows have no column {', '.join(unknown)}", op="stream")
    return pa.schema([STORED.field(name) for name in names])


def from_log(log: LogReader, ticket: Ticket, memory: Room, limits: RouterLimits) -> Iterator[pa.RecordBatch]:
    """The batches of a ticket, in the order that it asks for. Errors: `LogError`, as the reader's."""
    state = log.state()
    segments = [
        segment
        for segment in state.segments
        if segment.last_seqno > ticket.after_seqno and segment.first_seqno <= ticket.last_seqno
    ]
    if not segments:
        # Beyond the log's end there is nothing; before its beginning that is an error.
        yield from _read(log, ticket, ticket.after_seqno, ticket.last_seqno)
    after = ticket.after_seqno
    for segment in segments:
        last = min(segment.last_seqno, ticket.last_seqno)
        if last <= after:
            # A transaction that lies in several segments was read as one.
            continue
        near = [one for one in segments if one.last_seqno > after and one.first_seqno <= last]
        held_bytes = _held_bytes(near, in_order=ticket.in_order) + _WHOLE_BATCHES * limits.batch_bytes
        with memory.take(held_bytes, limits.max_wait):
            yield from _sized(_read(log, ticket, after, last), limits.batch_bytes)
        after = last


def _read(log: LogReader, ticket: Ticket, after_seqno: int, last_seqno: int) -> Iterator[pa.RecordBatch]:
    if ticket.kind is TicketKind.TRANSACTIONS:
        yield from log.transactions(after_seqno, last_seqno).to_batches()
        return
    names = schema_of(ticket).names
    if ticket.routing is None or ticket.channel is None or ticket.routing == Routing(channels=ticket.routing.channels):
        # By key the log itself leaves other channels' rows out.
        yield from log.rows(
            after_seqno,
            last_seqno,
            columns=names,
            in_order=ticket.in_order,
            after_fragno=ticket.after_fragno,
            buckets=_narrowed(ticket.buckets, ticket.routing, ticket.channel),
        )
        return
    partitioner = open_partitioner(ticket.routing)
    relations = {relation.relation_id: relation for relation in log.state().relations}
    for batch in log.rows(
        after_seqno,
        last_seqno,
        columns=list(dict.fromkeys((*names, *partitioner.columns))),
        in_order=ticket.in_order,
        after_fragno=ticket.after_fragno,
        buckets=ticket.buckets,
    ):
        mine = batch.filter(pa.array(partitioner.place(batch, relations).channels == ticket.channel))
        yield mine.select(names)


def _narrowed(buckets: tuple[int, int] | None, routing: Routing | None, channel: int | None) -> tuple[int, int] | None:
    """Those of the buckets that a channel has by key; so row groups of others are not read. All without a channel."""
    if routing is None or channel is None:
        return buckets
    first, last = bucket_range(channel, routing.channels)
    return (first, last) if buckets is None else (max(first, buckets[0]), min(last, buckets[1]))


def _held_bytes(segments: Sequence[Segment], *, in_order: bool) -> int:
    """About the memory that reading takes: one segment's rows at a time, or one row group's."""
    if in_order:
        return max(_WHOLE_SEGMENTS * memory_bytes(segment) for segment in segments)
    return max(
        2
        * memory_bytes(segment)
        * max((group.row_count for group in segment.row_groups), default=0)
        // max(segment.row_count, 1)
        for segment in segments
    )


def _sized(batches: Iterator[pa.RecordBatch], batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about that size: a channel's share of a row group is small, and one of wide rows
    larger than a message may be.
    """
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        width = max(1, batch.nbytes // batch.num_rows)
        rows = max(1, batch_bytes // width)
        for start in range(0, batch.num_rows, rows):
            piece = batch.slice(start, rows)
            held.append(piece)
            size += width * piece.num_rows
            if size >= batch_bytes:
                yield _joined(held)
                held, size = [], 0
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
