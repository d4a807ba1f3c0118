"""Encoding by processes instead of threads: what that would gain, with the hand-over of rows and bytes that it needs.

Processes are started and warm before anything is measured. Rows reach them as an Arrow file in shared memory, which
they map; what they encode comes back as files there. Each has an equal part of the rows.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import pyarrow as pa

from benchmarks.encoding_ways import encode_alone

_SHARED: Final = Path("/dev/shm")  # noqa: S108  # a folder of our own is made in it


class Processes:
    """So many warm processes."""

    def __init__(self, pipes: list[Connection], directory: Path) -> None:
        self._pipes = pipes
        self._directory = directory

    def encode(self, way: str, name: str, rows: pa.Table, count: int) -> int:
        """The bytes that `count` of them make."""
        shared = self._directory / "rows"
        with pa.ipc.new_file(shared, rows.schema) as writer:
            writer.write_table(rows)
        part = -(-rows.num_rows // count)
        outputs = [self._directory / str(number) for number in range(count)]
        for number, output in enumerate(outputs):
            self._pipes[number].send((way, name, str(shared), number * part, part, str(output)))
        for pipe in self._pipes[:count]:
            pipe.recv()
        sizes = []
        for output in outputs:
            with pa.memory_map(str(output)) as file:
                sizes.append(file.size())
            output.unlink()
        shared.unlink()
        return sum(sizes)


@contextmanager
def warm_processes(count: int) -> Iterator[Processes]:
    """Start processes, and end them."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir=_SHARED if _SHARED.is_dir() else None) as directory:
        pipes = []
        processes = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            yield Processes(pipes, Path(directory))
        finally:
            for pipe in pipes:
                pipe.close()
            for process in processes:
                process.join()


def _serve(pipe: Connection) -> None:
    while True:
        try:
            way, name, shared, start, length, output = pipe.recv()
        except EOFError:
            return
        with pa.memory_map(shared) as file:
            rows = pa.ipc.open_file(file).read_all().slice(start, length)
            with Path(output).open("wb", buffering=0) as sink:
                for piece in encode_alone(way, name, rows):
                    sink.write(piece)
            del rows
        pipe.send(None)
