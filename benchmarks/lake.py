"""Merging into a Delta table: net changes as a pipeline stages them, against delta-rs' own merge of the raw changes.

A merge of delta-rs takes one change of a key at most. So raw changes go in as their user would give them: in batches
that are cut where a key comes again, or, as the least that could be asked for, each batch reduced to the last change of
its keys. Processor seconds of this process; typing the log's text, and reducing it, are part of ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.epoch import Branch, StagedUnit, Unit
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.value_type import ValueType
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.open import target_connector
from airflow_parallel_apply.pipeline.target.steps import Merge

_INTEGER: Final = ValueType.parse("integer 64")
ACCOUNTS: Final = Relation(
    relation_id=0,
    schema="public",
    table="accounts",
    replica_identity=ReplicaIdentity.KEY,
    columns=(
        Column(name="aid", type_name="bigint", kind=KeyKind.INTEGER, key=True, value=_INTEGER),
        Column(name="bid", type_name="bigint", value=_INTEGER),
        Column(name="balance", type_name="bigint", value=_INTEGER),
        Column(name="filler", type_name="text", value=ValueType.parse("text")),
    ),
)
_PIPELINE: Final = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeLine:
    """One way. Processor seconds, seconds on the clock, and commits to the table."""

    way: str
    cpu_seconds: float
    seconds: float
    commits: int


def measure_lake(
    directory: Path, *, rows: int, changes: int, batch: int, repeats: int, tell: Callable[[str], None]
) -> list[LakeLine]:
    """Medians of each way; all of them end with the same table, or it is an error."""
    keys, balances = _updates(rows, changes)
    lines: dict[str, list[LakeLine]] = {}
    for repeat in range(repeats):
        contents = set()
        for way in ("net", "raw, cut where a key comes again", "raw, last change of each key"):
            root = directory / f"{way.partition(',')[0]}{len(lines)}{repeat}{way[-3:]}"
            uri = str(root / "public" / "accounts")
            Path(uri).mkdir(parents=True)
            write_deltalake(uri, _table(np.arange(rows), np.zeros(rows, dtype=np.int64)))
            began, spent = time.monotonic(), time.process_time()
            if way == "net":
                _net(root, keys, balances)
            else:
                _raw(uri, keys, balances, batch, is_reduced=way.endswith("of each key"))
            found = DeltaTable(uri)
            line = LakeLine(
                way=way,
                cpu_seconds=time.process_time() - spent,
                seconds=time.monotonic() - began,
                commits=found.version(),
            )
            lines.setdefault(way, []).append(line)
            contents.add(int(np.dot(*(_column(found, name) for name in ("aid", "balance"))) % 2**61))
            tell(f"{way}: {line.cpu_seconds:.1f} s of the processor, {line.seconds:.1f} s, {line.commits} commits")
        if len(contents) != 1:
            raise RuntimeError("the ways end with different tables")
    return [_median(found) for found in lines.values()]


def _updates(rows: int, changes: int) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(7)
    return chance.integers(0, rows, changes), chance.integers(-5000, 5000, changes)


def _table(keys: np.ndarray, balances: np.ndarray) -> pa.Table:
    filler = pa.array([" " * 84]).take(pa.array(np.zeros(len(keys), dtype=np.int64)))
    return pa.table({"aid": keys, "bid": keys // 100_000, "balance": balances, "filler": filler})


def _net(root: Path, keys: np.ndarray, balances: np.ndarray) -> None:
    """As lane and loader do it, in this process: one unit of all changes."""
    endpoint = Endpoint(conn_id="target", url=f"delta://{root}")
    connector = target_connector(endpoint)
    target = connector.open(endpoint, _PIPELINE, relations=_Relations(), ledger=lambda: "elsewhere")
    target.migrate()
    target.own(1)
    target.lay_out(log_id="log", routing=Routing(channels=1), generation=1)
    target.take(0, generation=1, token="claim")  # noqa: S106  # no password
    unit = Unit(
        pipeline=_PIPELINE,
        generation=1,
        kind=Branch(0),
        channels=1,
        token="claim",  # noqa: S106  # no password
        after_seqno=-1,
        last_seqno=len(keys),
        row_count=len(keys),
    )
    loaded = connector.loader(endpoint, unit, [ACCOUNTS]).load(_log_rows(keys, balances), "attempt")
    target.commit(unit, [Merge(StagedUnit(unit=unit, tables=loaded.tables, row_count=loaded.row_count, seconds=0.0))])


def _raw(uri: str, keys: np.ndarray, balances: np.ndarray, batch: int, *, is_reduced: bool) -> None:
    for first, last in _batches(keys, batch, is_cut=not is_reduced):
        part, values = keys[first:last], balances[first:last]
        if is_reduced:
            _, from_the_end = np.unique(part[::-1], return_index=True)
            kept = len(part) - 1 - from_the_end
            part, values = part[kept], values[kept]
        merging = DeltaTable(uri).merge(_table(part, values), "s.aid = t.aid", source_alias="s", target_alias="t")
        merging.when_matched_update_all().when_not_matched_insert_all().execute()


def _batches(keys: np.ndarray, batch: int, *, is_cut: bool) -> Iterator[tuple[int, int]]:
    first = 0
    while first < len(keys):
        last = min(first + batch, len(keys))
        if is_cut:
            _, at = np.unique(keys[first:last], return_index=True)
            again = np.setdiff1d(np.arange(last - first), at, assume_unique=True)
            last = first + int(again[0]) if len(again) else last
        yield first, last
        first = last


def _log_rows(keys: np.ndarray, balances: np.ndarray) -> Iterator[pa.RecordBatch]:
    """As Spark hands them over: first and last change of each key, together and in order."""
    order = np.lexsort((np.arange(len(keys)), keys))
    edges = np.flatnonzero(np.diff(keys[order])) + 1
    kept = order[np.union1d(np.concatenate(([0], edges)), np.concatenate((edges - 1, [len(order) - 1])))]
    texts = [pa.array(column[kept]).cast(pa.string()) for column in (keys, keys // 100_000, balances)]
    values = pa.compute.binary_join_element_wise(*texts, " " * 84, "\t")
    nothing = pa.nulls(len(kept), pa.string())
    zeros = np.zeros(len(kept), dtype=np.int64)
    columns = {
        "seqno": kept,
        "fragno": zeros,
        "relation_id": zeros,
        "operation": pa.array(["U"]).take(pa.array(zeros)),
        "bucket": zeros,
        "key": texts[0],
        "key_order": zeros,
        "previous_seqno": zeros - 1,
        "next_seqno": zeros,
        "values": values,
        "unsent": nothing,
        "old_key": nothing,
    }
    rows = pa.table({name: pa.array(columns[name]) for name in ROWS.names}).cast(ROWS)
    yield from rows.to_batches(max_chunksize=65_536)


def _column(table: DeltaTable, name: str) -> np.ndarray:
    found: np.ndarray = table.to_pyarrow_table(columns=["aid", "balance"]).sort_by("aid").column(name).to_numpy()
    return found


def _median(found: Sequence[LakeLine]) -> LakeLine:
    return LakeLine(
        way=found[0].way,
        cpu_seconds=median(line.cpu_seconds for line in found),
        seconds=median(line.seconds for line in found),
        commits=found[0].commits,
    )


class _Relations:
    """Implements `Relations` for the one table."""

    def __call__(self, relation_id: int) -> Relation:
        del relation_id
        return ACCOUNTS

    def names(self, after_seqno: int) -> set[tuple[str, str]]:
        del after_seqno
        return self.all_names()

    def all_names(self) -> set[tuple[str, str]]:
        return {(ACCOUNTS.schema, ACCOUNTS.table)}

    def definitions(self) -> Sequence[Relation]:
        return (ACCOUNTS,)

    def commit_times(self, after_seqno: int, last_seqno: int) -> CommitTimes:
        raise NotImplementedError
