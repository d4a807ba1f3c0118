"""`python -m tests.support.alternating <MB> <memory MB> <directory>`: the deadlock of a router that does not buffer.

The source has the rows of one channel after those of another, as the row groups of a log do. The consumer has one slot:
it reads two channels in turns, then the next two. It prints, as JSON: the rows that it read, the spilled bytes, and by
how many bytes this process grew at most.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_parallel_apply.router.engine import Budget, StreamOutput, Tagged, stream_engine
from tests.support.routed import SCHEMA, placed

CHANNELS: Final = 8
BATCH_ROWS: Final = 8_192
WIDTH: Final = 112
"""Bytes of a row's payload, 128 with its numbers; noise, so that a spill is as large as it can be."""


def main(megabytes: int, memory_megabytes: int, directory: Path) -> None:
    batches = megabytes * 2**20 // (BATCH_ROWS * 128)
    budget = Budget(memory_bytes=memory_megabytes * 2**20, disk_bytes=2 * megabytes * 2**20)
    # What is used for the first time (codecs, kernels, threads) is no matter of the budget.
    _route(4, budget, directory)
    before = _peak_bytes()
    rows, spilled = _route(batches, budget, directory)
    print(json.dumps({"rows": rows, "spilled_bytes": spilled, "grown_bytes": _peak_bytes() - before}))


def _route(batches: int, budget: Budget, directory: Path) -> tuple[int, int]:
    with stream_engine(routes=placed(CHANNELS), budget=budget, directory=directory) as engine:
        running = threading.Thread(target=engine.run, args=(source(batches),))
        running.start()
        rows = sum(
            read_in_turns(engine.output(channel), engine.output(channel + 1)) for channel in range(0, CHANNELS, 2)
        )
        running.join()
        return rows, sum(stats.high_disk_bytes for stats in engine.stats())


def source(batches: int) -> Iterator[Tagged]:
    """Each eighth is of two channels nearly alone: first of one, and then of the other."""
    random = np.random.default_rng(1)
    for number in range(batches):
        places = np.full(BATCH_ROWS, number * CHANNELS // batches)
        places[:CHANNELS] = range(CHANNELS)
        offsets = np.arange(0, (BATCH_ROWS + 1) * WIDTH, WIDTH, dtype=np.int32)
        noise = random.integers(32, 127, BATCH_ROWS * WIDTH, dtype=np.uint8)
        payload = pa.StringArray.from_buffers(BATCH_ROWS, pa.py_buffer(offsets), pa.py_buffer(noise))
        yield Tagged(pa.record_batch([places, np.arange(BATCH_ROWS), payload], schema=SCHEMA), number, number)


def read_in_turns(one: StreamOutput, other: StreamOutput, timeout: float | None = None) -> int:
    """As many rows of one as of the other. Errors: `TimeoutError`."""
    rows = {one: 0, other: 0}
    ended: set[StreamOutput] = set()
    while len(ended) < 2:
        output = min((found for found in rows if found not in ended), key=lambda found: rows[found])
        item = output.read(timeout)
        if item is None:
            ended.add(output)
        else:
            rows[output] += item.batch.num_rows
    return sum(rows.values())


def _peak_bytes() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
