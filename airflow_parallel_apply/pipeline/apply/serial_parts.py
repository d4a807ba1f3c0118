"""Cuts a serial unit of several transactions into parts that are committed one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from airflow_parallel_apply.pipeline.log.protocol import RowReader
from airflow_parallel_apply.pipeline.model.change import Mark
from airflow_parallel_apply.pipeline.model.epoch import Unit


def is_single(unit: Unit) -> bool:
    """True if it is one transaction, which may be of any size."""
    return unit.last_seqno == unit.after_seqno + 1


def serial_parts(unit: Unit, log: RowReader) -> tuple[Unit, ...]:
    """The unit in parts that are committed one after the other: a transaction with DDL ends one, since its text may
    change settings of the session, which is then closed.
    """
    if is_single(unit):
        return (unit,)
    transactions = log.transactions(unit.after_seqno, unit.last_seqno)
    marked = zip(transactions.column("seqno").to_pylist(), transactions.column("marks").to_pylist(), strict=True)
    ends = [seqno for seqno, marks in marked if Mark.MESSAGE in (marks or ())]
    return _cut(unit, ends)


def single_transactions(unit: Unit) -> tuple[Unit, ...]:
    """The unit as one part for each transaction: what is refused then is refused in its own place."""
    return _cut(unit, range(unit.after_seqno + 1, unit.last_seqno))


def _cut(unit: Unit, ends: Iterable[int]) -> tuple[Unit, ...]:
    parts: list[Unit] = []
    after = unit.after_seqno
    for end in (*(end for end in ends if end < unit.last_seqno), unit.last_seqno):
        parts.append(replace(unit, after_seqno=after, last_seqno=end))
        after = end
    return tuple(parts)
