"""Spark's own writers of an export's formats, from a DataFrame in its memory to files, by one task and by two."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_parallel_apply.spark.layout import ServerSettings
from airflow_parallel_apply.spark.server import connect_server, stop_server
from airflow_parallel_apply.spark.session import close_session, open_session

FORMATS: Final = ("parquet", "json", "csv")
"""Avro is a package of its own in Spark, which the wheel does not have."""


@contextmanager
def spark_session(directory: Path) -> Iterator[Any]:
    """A server of the benchmark's own with two cores, and a session."""
    settings = replace(ServerSettings.from_environment(), master="local[2]")
    try:
        with connect_server(settings=settings, directory=directory / "spark") as lease:
            session = open_session(lease.url, str(uuid.uuid4()))
            try:
                yield session
            finally:
                close_session(session)
    finally:
        stop_server(directory=directory / "spark")


def spark_seconds(session: Any, typed: pa.Table, directory: Path, *, repeats: int) -> dict[str, dict[int, float]]:
    """Medians, by format and number of tasks. The first write of each is not counted: it compiles."""
    files = directory / "typed"
    files.mkdir()
    pq.write_table(typed, files / "rows.parquet")
    found: dict[str, dict[int, float]] = {}
    for tasks in (1, 2):
        frame = session.read.parquet(str(files)).repartition(tasks).cache()
        frame.count()
        for format_ in FORMATS:
            spent = [_write(frame, format_, directory / "written") for _ in range(repeats + 1)]
            found.setdefault(format_, {})[tasks] = median(spent[1:])
        frame.unpersist()
    shutil.rmtree(files)
    return found


def _write(frame: Any, format_: str, target: Path) -> float:
    began = monotonic()
    frame.write.format(format_).mode("overwrite").save(str(target))
    return monotonic() - began
