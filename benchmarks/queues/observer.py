"""Looks at a queue until its standard input ends: statistics ten times a second, and the listing, 100 rows a page.

`python -m benchmarks.queues.observer URL QUEUE PAUSE`: the pages follow each other with that many seconds between them,
from the first to the last and again. A process of its own: it shares no interpreter with those who are measured.
"""

from __future__ import annotations

import sys
import threading
from contextlib import closing
from typing import Final

from airflow_parallel_apply.queue import Queue, Task, open_queue

_STATS_SECONDS: Final = 0.1
_PAGE_ROWS: Final = 100


def main() -> None:
    """Print how many statistics and pages it got."""
    url, name, pause = sys.argv[1], sys.argv[2], float(sys.argv[3])
    stop = threading.Event()
    with closing(open_queue(url)) as queue:
        counts = [0, 0]
        threads = [
            threading.Thread(target=_ask_statistics, args=(queue, stop, counts)),
            threading.Thread(target=_page, args=(queue, name, pause, stop, counts)),
        ]
        for thread in threads:
            thread.start()
        print("looking", flush=True)
        sys.stdin.read()
        stop.set()
        for thread in threads:
            thread.join()
    print(*counts)


def _ask_statistics(queue: Queue, stop: threading.Event, counts: list[int]) -> None:
    while not stop.wait(_STATS_SECONDS):
        queue.queue_stats()
        counts[0] += 1


def _page(queue: Queue, name: str, pause: float, stop: threading.Event, counts: list[int]) -> None:
    last: Task | None = None
    while not stop.wait(pause):
        page = queue.tasks(name, limit=_PAGE_ROWS, after=last)
        last = page[-1] if len(page) == _PAGE_ROWS else None
        counts[1] += 1


if __name__ == "__main__":
    main()
