"""Sources and consumers for the router's engine, and what must not be left behind by it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_parallel_apply.router.engine import Engine, PlacedRoutes, StreamOutput, Tagged
from airflow_parallel_apply.router.engine.output import Output

DEADLINE_SECONDS: Final = 180.0

SCHEMA: Final = pa.schema([("output", pa.int64()), ("number", pa.int64()), ("payload", pa.string())])


def batch(places: Sequence[int], *, first: int = 0, width: int = 20) -> pa.RecordBatch:
    """Rows for these outputs, numbered from `first`."""
    numbers = range(first, first + len(places))
    return pa.record_batch([list(places), list(numbers), [f"{number:0{width}}" for number in numbers]], schema=SCHEMA)


def batches(places: Sequence[int], size: int, *, width: int = 20) -> list[Tagged]:
    """The same in batches of so many rows; a row's number is its seqno."""
    found = []
    for first in range(0, len(places), size):
        some = batch(places[first : first + size], first=first, width=width)
        found.append(Tagged(some, first, first + some.num_rows - 1))
    return found


def placed(outputs: int) -> PlacedRoutes:
    """By the column `output`."""
    return PlacedRoutes(lambda rows: rows.column("output").to_numpy(), outputs)


def numbers_of(items: Sequence[Tagged]) -> list[int]:
    return [number for item in items for number in item.batch.column("number").to_pylist()]


def expected(places: Sequence[int], output: int) -> list[int]:
    """The numbers of the rows of an output, in order."""
    return np.flatnonzero(np.array(places) == output).tolist()


def until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for what other threads bring about."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {DEADLINE_SECONDS} s: {what}")
        time.sleep(0.0005)


class Task(threading.Thread):
    """Runs a function; `end` waits for it, and returns what it returned or raises what it raised."""

    def __init__(self, function: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self.error: BaseException | None = None
        self.result: object = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001  # told by `end`
            self.error = error

    def wait(self) -> None:
        self.join(DEADLINE_SECONDS)
        if self.is_alive():
            raise AssertionError("a thread of the test does not end")

    def end(self) -> object:
        self.wait()
        if self.error is not None:
            raise self.error
        return self.result


class Reader(Task):
    """Reads an output to its end, or `limit` items of it; `items` has what came so far."""

    def __init__(self, output: StreamOutput, *, limit: int | None = None) -> None:
        self.items: list[Tagged] = []
        self._output = output
        self._limit = limit
        super().__init__(self._read)

    def _read(self) -> None:
        while self._limit is None or len(self.items) < self._limit:
            item = self._output.read()
            if item is None:
                return
            self.items.append(item)


def run(engine: Engine[StreamOutput], source: Iterator[Tagged]) -> Task:
    return Task(lambda: engine.run(source))


def waiting(output: Output) -> int:
    stats = output.stats()
    return stats.waiting_memory_bytes + stats.waiting_disk_bytes


@contextmanager
def nothing_left(directory: Path) -> Iterator[None]:
    """No descriptor, thread or file more than before, as soon as the engine is let go of."""
    threads = threading.active_count()
    descriptors = _descriptors()
    yield
    # Others of this process may have one open for a moment, too.
    until(lambda: threading.active_count() <= threads and _descriptors() <= descriptors, "threads and descriptors go")
    assert not directory.exists() or not list(directory.iterdir())


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
