"""Stages a unit's rows as data files, in Spark's workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.files.address import FilesAddress
from airflow_parallel_apply.pipeline.target.files.feed import FeedWriter
from airflow_parallel_apply.pipeline.target.loading import Loaded, LoadTask


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesLoader:
    """See `Loader`. It takes every change. What an attempt that nobody acknowledged wrote, no manifest ever names."""

    address: FilesAddress
    relations: tuple[Relation, ...]
    commit_times: CommitTimes

    def load(self, batches: Iterable[pa.RecordBatch], attempt: str, *, task: LoadTask | None = None) -> Loaded:
        relations = {relation.relation_id: relation for relation in self.relations}

        def relation(relation_id: int) -> Relation:
            if relation_id not in relations:
                raise LogError(f"a row of relation {relation_id}, which the log does not define", hint="Report it.")
            return relations[relation_id]

        writer = FeedWriter(self.address, relations=relation, commit_times=self.commit_times)
        try:
            writer.write(batches)
            return Loaded(tables=writer.finish(), row_count=writer.row_count)
        except BaseException:
            writer.discard()
            raise
