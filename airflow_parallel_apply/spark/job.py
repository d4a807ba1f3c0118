"""The apply stage of a unit as a DataFrame: scan, filters, order. Rows leave Spark only into `LoadRows`.

::

    scan of files or streams ─ seqno, channel, fragno (pushed down to Parquet) ─ [counted] ─ links ─ order ─ LoadRows

Measured on TPC-B, of which the links drop half: for 300,000 log rows scan, filters, order and hand-over take 0.8
processor seconds of the JVM, the order under a tenth of that.

One task reads a channel's unit, since other lanes use the other cores. A unit of all channels, or of one that has more
rows than others, is read by several, each with a bucket range of its own; so nothing is exchanged. Else rows above
`EXCHANGE_ROWS` are spread by key range (Spark samples them to find the ranges), so that one key stays in one task.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from types import ModuleType
from typing import Any, Final

from airflow_parallel_apply.pipeline.model.change import Operation
from airflow_parallel_apply.pipeline.model.epoch import Serial, Unit
from airflow_parallel_apply.pipeline.store.protocol import FileBranch, StoreBranch, StreamBranch
from airflow_parallel_apply.spark.access import column_functions, filter_counts
from airflow_parallel_apply.spark.schemas import CHANGES_SCHEMA, LOADED_SCHEMA, LOG_SCHEMA
from airflow_parallel_apply.spark.session import BATCH_BYTES, BATCH_ROWS
from airflow_parallel_apply.spark.stream_source import stream_rows

EXCHANGE_ROWS: Final = 2_000_000
"""Log rows that one task takes at most, of a unit that can be divided."""


_TASK_ROWS: Final = 50_000
"""Log rows that are worth a task of their own."""


_PATTERN_MARKS: Final = re.compile(r"[\\*?{}\[\]]")

_NUMBERS_BYTES: Final = 128
"""The bytes of a row beside its texts, with their bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyJob:
    """`counted`: the rows of the unit, before its links are looked at. `ordered`: what is to be loaded.
    `exchanged`: whether the rows change tasks; then Spark reads them twice and its row metric counts double.
    `scans`: how often the files are read, each time for other rows.
    """

    counted: Any
    ordered: Any
    exchanged: bool
    scans: int


def build_job(
    session: Any,
    unit: Unit,
    branch: StoreBranch,
    *,
    takes_changes: bool = False,
    exchange_rows: int = EXCHANGE_ROWS,
) -> ApplyJob:
    """Describe the job of a unit; nothing runs yet. `takes_changes`: see `TargetConnector`."""
    f = column_functions(session)
    counted = _scan(session, branch).where(_unit_filter(f, unit, branch))

    def needed(counted: Any) -> Any:
        # Inside one transaction links do not tell the first change from the last.
        takes_all = takes_changes or isinstance(unit.kind, Serial)
        return counted if takes_all else counted.where(_link_filter(f, unit, branch))

    tasks, scan_count = 1, 1
    match branch:
        case FileBranch(ranges=ranges) if ranges:
            scans = [needed(counted.where(f.col("bucket").between(*buckets))).coalesce(1) for buckets in ranges]
            spread, scan_count = reduce(lambda above, below: above.union(below), scans), len(scans)
        case StreamBranch(tickets=tickets) if len(tickets) > 1:
            # One task reads one ticket.
            spread = needed(counted)
        case _:
            tasks = -(-unit.row_count // exchange_rows)
            spread = needed(counted).coalesce(1) if tasks <= 1 else _spread(f, needed(counted), tasks, branch)
    if takes_changes:
        ordered = spread.sortWithinPartitions("seqno", "fragno").to(CHANGES_SCHEMA)
    else:
        by_key = (_first_sight(f, branch), "relation_id", "key", "seqno", "fragno")
        ordered = spread.sortWithinPartitions(*by_key).to(LOADED_SCHEMA)
    return ApplyJob(counted=counted, ordered=ordered, exchanged=tasks > 1, scans=scan_count)


def parts_of(unit: Unit, cores: Callable[[], int], *, exchange_rows: int = EXCHANGE_ROWS) -> int:
    """By how many tasks a unit is best read, each with a part of the buckets: at most one for each channel and for each
    of Spark's cores, unless it is very large. With more, the next unit's tasks would run between them. One that is
    committed where it is loaded is one task's.
    """
    if unit.is_direct:
        return 1
    wanted = min(unit.channels, unit.row_count // _TASK_ROWS)
    return max(min(wanted, cores()) if wanted > 1 else 1, -(-unit.row_count // exchange_rows))


def is_narrow(branch: StoreBranch) -> bool:
    """True if no batch of `BATCH_ROWS` of its rows has more than `BATCH_BYTES`. A row has its values, a key and a
    bitmap, which are not longer each, and numbers.
    """
    if not isinstance(branch, FileBranch) or branch.widest_bytes is None:
        return False
    return (3 * branch.widest_bytes + _NUMBERS_BYTES) * BATCH_ROWS <= BATCH_BYTES


def read_rows(session: Any, files: Sequence[str]) -> Any:
    """Row files of a log as a DataFrame. Vectored reads run in threads whose bytes Spark's metrics do not see."""
    # Spark takes a path for a pattern.
    paths = [_PATTERN_MARKS.sub(r"\\\g<0>", file) for file in files]
    return session.read.schema(LOG_SCHEMA).option("parquet.hadoop.vectored.io.enabled", "false").parquet(*paths)


def counted_rows(executed: Any, scans: int = 1) -> int | None:
    """Count the rows that passed the unit's filter, by Spark's own metric of an executed `ordered`; None if not told.

    The filter on links stays a step of its own (see `_link_filter`), and the one nearest to a scan is the unit's.
    """
    counts = filter_counts(executed)
    return sum(counts) if counts is not None and len(counts) == scans else None


def _scan(session: Any, branch: StoreBranch) -> Any:
    match branch:
        case FileBranch(files=files):
            return read_rows(session, files)
        case StreamBranch(address=address, tickets=tickets):
            return stream_rows(session, address, tickets)


def _unit_filter(f: ModuleType, unit: Unit, branch: StoreBranch) -> Any:
    found = (f.col("seqno") > unit.after_seqno) & (f.col("seqno") <= unit.last_seqno)
    if branch.committed is not None:
        found = found & f.expr(f"seqno > ({branch.committed})")
    if branch.condition is not None:
        found = found & f.expr(branch.condition)
    else:
        found = found & f.col("operation").isin([operation.value for operation in Operation if operation.is_row])
    if not isinstance(unit.kind, Serial):
        return found
    if unit.kind.first_fragno is not None:
        found = found & (f.col("fragno") >= unit.kind.first_fragno)
    if unit.kind.last_fragno is not None:
        found = found & (f.col("fragno") <= unit.kind.last_fragno)
    return found


def _link_filter(f: ModuleType, unit: Unit, branch: StoreBranch) -> Any:
    """Keep the first and the last of each key's changes. The filter's last term is never true; being neither constant
    nor deterministic, it keeps Spark from joining this filter with the unit's, whose output is the count of the unit's
    rows.
    """
    committed = str(unit.after_seqno) if branch.committed is None else branch.committed
    is_first = f.expr(f"previous_seqno <= ({committed})")
    return is_first | (f.col("next_seqno") > unit.last_seqno) | (f.spark_partition_id() < 0)


def _key_order(f: ModuleType, branch: StoreBranch) -> Any:
    """The order of keys. Where an older rule put a relation in order, the texts of its keys alone decide."""
    order = f.col("key_order")
    if not branch.unordered:
        return order
    return f.when(f.col("relation_id").isin(list(branch.unordered)), f.lit(0)).otherwise(order)


def _first_sight(f: ModuleType, branch: StoreBranch) -> Any:
    """Spark's sort compares 64 bits of the first column, and whole rows only where these are equal: so the column that
    tells most rows apart comes first. The loader takes rows of several tables in any mixture.
    """
    return f.when(f.col("key").isNull(), f.col("seqno")).otherwise(_key_order(f, branch))


def _spread(f: ModuleType, rows: Any, tasks: int, branch: StoreBranch) -> Any:
    """By ranges that never divide a key; rows of tables without one are told apart by their seqno."""
    keyless = f.when(f.col("key").isNull(), f.col("seqno"))
    return rows.repartitionByRange(tasks, f.col("relation_id"), _key_order(f, branch), f.col("key"), keyless)
