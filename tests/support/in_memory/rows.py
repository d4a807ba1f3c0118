"""Rows of a log's one table as the target in memory takes them, and what a unit's rows come to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from airflow_parallel_apply.pipeline.model.change import Operation
from airflow_parallel_apply.pipeline.model.copy_text import values_of
from airflow_parallel_apply.pipeline.model.epoch import Unit

Rows = dict[int, str | None]
"""By key."""


@dataclass(frozen=True)
class LogRow:
    """A row of the log's one table."""

    seqno: int
    fragno: int
    operation: str
    bucket: int
    id: int
    value: str | None


@dataclass(frozen=True)
class Net:
    """A unit's effect on a key: how it begins, and whether and with which value the row is there at its end."""

    begins: str
    is_there: bool
    value: str | None


def rows_of(batch: pa.RecordBatch) -> Iterator[LogRow]:
    """The changes of rows of a batch of the log."""
    for row in batch.select(["seqno", "fragno", "operation", "bucket", "values"]).to_pylist():
        if Operation(row["operation"]).is_row:
            key, value = values_of(row["values"])
            yield LogRow(row["seqno"], row["fragno"], row["operation"], row["bucket"], int(str(key)), value)


def is_of(unit: Unit, row: LogRow) -> bool:
    """True if the unit takes the row."""
    channel = row.bucket * unit.channels // 1024
    return unit.channel in (None, channel) and unit.after(channel) < row.seqno <= unit.last_seqno


def net_of(rows: Sequence[LogRow]) -> dict[int, Net]:
    """By key, from rows in their order."""
    net: dict[int, Net] = {}
    for row in rows:
        begins = net[row.id].begins if row.id in net else row.operation
        net[row.id] = Net(begins, row.operation != Operation.DELETE, row.value)
    return net


def net_by_channel(rows: Sequence[LogRow], channels: int) -> list[dict[int, Net]]:
    """The net changes of each channel that has some."""
    by_channel = ([row for row in rows if row.bucket * channels // 1024 == channel] for channel in range(channels))
    return [net for net in map(net_of, by_channel) if net]
