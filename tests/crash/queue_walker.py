"""A process that walks on a data directory until it is killed: `python -m tests.crash.queue_walker DIR SEED=STEP …`.

It writes `SEED STEP` to standard output when a step was acknowledged, and prints nothing of a step under way.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from airflow_parallel_apply.queue.memory import DataDirectory, DataLimits, MemoryQueue, SegmentLimits
from tests.support.queue_walk import Walk

LIMITS = DataLimits(segment=SegmentLimits(max_bytes=8_000, max_items=40), snapshot_after_bytes=24_000)
"""Segments and snapshots turn over many times a second: most kills meet one of them."""


def main() -> None:
    data = DataDirectory(Path(sys.argv[1]), limits=LIMITS)
    queue = MemoryQueue(data.engine)

    def walk(seed: int, number: int) -> None:
        one = Walk(queue, seed)
        while True:
            one.step(number)
            # One write: what is read of it was acknowledged whole.
            os.write(1, f"{seed} {number}\n".encode())
            number += 1

    for argument in sys.argv[2:]:
        seed, _, number = argument.partition("=")
        threading.Thread(target=walk, args=(int(seed), int(number))).start()


if __name__ == "__main__":
    main()
