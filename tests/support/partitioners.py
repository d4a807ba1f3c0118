"""A partitioner that was installed beside the package: by the first letter of the table's name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.partition.open import open_partitioner
from airflow_parallel_apply.pipeline.partition.protocol import UNKNOWN, Placement
from airflow_parallel_apply.pipeline.partition.routing import Routing
from tests.support.installed import installed


class ByLetter:
    """See `Partitioner`. Whole, so that a table of its own is a shard."""

    is_whole = True
    columns = ("relation_id",)

    def __init__(self, routing: Routing) -> None:
        self._channels = routing.channels

    def refusal(self, relation: Relation) -> str | None:
        return None if relation.table[0].isascii() else "has no letter that we know"

    def place(self, rows: pa.RecordBatch, relations: Mapping[int, Relation]) -> Placement:
        letters = {number: ord(relation.table[0]) for number, relation in relations.items()}
        found = np.array([letters.get(number, UNKNOWN) for number in rows.column("relation_id").to_pylist()], np.int64)
        return Placement(np.where(found >= 0, found % self._channels, UNKNOWN), found)

    def condition(self, channel: int, relations: Collection[Relation]) -> str:
        mine = [found.relation_id for found in relations if ord(found.table[0]) % self._channels == channel]
        return f"relation_id IN ({', '.join(map(str, mine))})" if mine else "false"


@contextmanager
def by_letter_installed(directory: Path, *, version: str = "1.0") -> Iterator[None]:
    """As `pip install` would leave it: a distribution with an entry point, on the path."""
    entry_points = {"airflow_parallel_apply.partitioners": f"by_letter = {__name__}:{ByLetter.__name__}"}
    open_partitioner.cache_clear()
    with installed(directory, "by_letter", entry_points, version=version):
        try:
            yield
        finally:
            open_partitioner.cache_clear()
