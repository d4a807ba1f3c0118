"""Encode a unit's rows into staged messages: what one attempt of one Spark task does with its rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

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
        made: dict[int, list[pa.RecordBatch]] = {}
        row_count = 0
        for batch in batches:
            row_count += batch.num_rows
            for relation, part in messages.by_relation(batch, self.commit_times):
                made.setdefault(relation.relation_id, []).append(part)
        staging = Staging(self.address, self.pipeline)
        tables = tuple(
            _staged(relation_id, staging.write(self.folder, attempt, relation_id, parts), parts)
            for relation_id, parts in sorted(made.items())
        )
        return Loaded(tables=tables, row_count=row_count)

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
