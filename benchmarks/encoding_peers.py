"""Encoders by rows, which ours are compared with: fastavro and orjson, given the dictionaries that they take."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic, process_time
from typing import Any, Final

import fastavro
import orjson
import pyarrow as pa

from airflow_parallel_apply.pipeline.encode.avro.schema import avro_schema
from airflow_parallel_apply.pipeline.encode.columns.rows import row_typing
from benchmarks.encoded_rows import relation
from benchmarks.interpreter_lock import turns_beside

_BATCH: Final = 65_536
FED: Final = "{}, with its rows"
"""The name of a peer's line that has the making of its dictionaries, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLine:
    """One peer. `turns`: of another thread beside it."""

    what: str
    seconds: float
    cpu_seconds: float
    byte_count: int
    turns: float | None


def measure_peers(name: str, typed: pa.Table) -> list[PeerLine]:
    """In parts: a million dictionaries would fill the memory."""
    typing = row_typing(relation(name))
    schema = fastavro.parse_schema(avro_schema(typing.schema, typing.table))

    def by_fastavro(rows: list[dict[str, Any]]) -> int:
        file = io.BytesIO()
        fastavro.writer(file, schema, rows, codec="null")
        return file.tell()

    def by_orjson(rows: list[dict[str, Any]]) -> int:
        return sum(len(orjson.dumps(row, default=str, option=orjson.OPT_APPEND_NEWLINE)) for row in rows)

    spent: dict[str, list[tuple[float, float, int]]] = {"rows": [], "fastavro": [], "orjson": []}
    peers = {"fastavro": by_fastavro, "orjson": by_orjson}
    rows: list[dict[str, Any]] = []
    for start in range(0, typed.num_rows, _BATCH):
        part = typed.slice(start, _BATCH)
        spent["rows"].append(timed(lambda part=part: len(part.to_pylist())))  # type: ignore[misc]
        rows = part.to_pylist()
        for what, peer in peers.items():
            spent[what].append(timed(partial(peer, rows)))
    sums = {what: tuple(map(sum, zip(*found, strict=True))) for what, found in spent.items()}
    found = []
    for what, peer in peers.items():
        turns = turns_beside(partial(peer, rows[: _BATCH // 8]))
        for called, (more, more_busy, _) in ((what, (0.0, 0.0, 0)), (FED.format(what), sums["rows"])):
            alone, busy, size = sums[what]
            found.append(
                PeerLine(
                    what=called,
                    seconds=alone + more,
                    cpu_seconds=busy + more_busy,
                    byte_count=int(size),
                    turns=turns if called == what else None,
                )
            )
    return found


def timed(work: Callable[[], int]) -> tuple[float, float, int]:
    """Seconds on the clock and of this process's processors, and the result."""
    began, working = monotonic(), process_time()
    result = work()
    return monotonic() - began, process_time() - working, result
