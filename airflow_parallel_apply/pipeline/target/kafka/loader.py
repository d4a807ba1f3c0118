"""Encode a unit's rows into staged messages: what one attempt of one Spark task does with its rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import StagedTable
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress
from airflow_parallel_apply.pipeline.target.kafka.messages import Messages
from airflow_parallel_apply.pipeline.target.kafka.staging import Staging
from airflow_parallel_apply.pipeline.target.loading import Loaded, LoadTask

_MAX_MADE_BYTES: Final = 64 * 2**20
"""Messages that a task holds until it writes them to files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaLoader:
    """See `Loader`. `folder`: where the unit's files are. It connects to no broker: Kafka knows no staging that a
    transaction of somebody else could commit.
    """

    address: KafkaAddress = field(repr=False)
    pipeline: str
    folder: str
    relations: tuple[Relation, ...]
    commit_times: CommitTimes = field(repr=False)

    def load(self, batches: Iterable[pa.RecordBatch], attempt: str, *, task: LoadTask | None = None) -> Loaded:  # noqa: ARG002  # attempts need not know of each other
        messages = Messages(self.address, self._relation)
        staging = Staging(self.address, self.pipeline)
        made: dict[int, list[pa.RecordBatch]] = {}
        tables: list[StagedTable] = []
        sizes: dict[int, int] = {}
        row_count = 0

        def write(relation_id: int) -> None:
            parts = made.pop(relation_id)
            del sizes[relation_id]
            name = f"{attempt} {len(tables)}"
            tables.append(_staged(relation_id, staging.write(self.folder, name, relation_id, parts), parts))

        for batch in batches:
            row_count += batch.num_rows
            for relation, part in messages.by_relation(batch, self.commit_times):
                made.setdefault(relation.relation_id, []).append(part)
                sizes[relation.relation_id] = sizes.get(relation.relation_id, 0) + part.nbytes
            if sum(sizes.values()) > _MAX_MADE_BYTES:
                # The largest alone: a file for the little of each of many relations would be many small ones.
                for relation_id in sorted(sizes, key=lambda one: sizes[one], reverse=True):
                    write(relation_id)
                    if sum(sizes.values()) <= _MAX_MADE_BYTES // 2:
                        break
        for relation_id in sorted(made):
            write(relation_id)
        return Loaded(tables=tuple(tables), row_count=row_count)

    def _relation(self, relation_id: int) -> Relation:
        found = next((one for one in self.relations if one.relation_id == relation_id), None)
        if found is None:
            raise LogError(f"rows of relation {relation_id}, which the unit does not define")
        return found


def _staged(relation_id: int, path: str, parts: list[pa.RecordBatch]) -> StagedTable:
    def count(operation: str) -> int:
        return sum(pc.sum(pc.equal(part.column("operation"), operation)).as_py() or 0 for part in parts)

    return StagedTable(
        relation_id=relation_id,
        staging=path,
        inserts=count("insert") + count("read"),
        updates=count("update"),
        deletes=count("delete"),
        has_unsent=False,
    )
